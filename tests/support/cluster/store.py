"""The cluster's memory: objects by kind, namespace and name, and every change since the start.

Lives in the cluster's event loop; only `Cluster` calls it from elsewhere, through that loop.
"""

from __future__ import annotations

import asyncio
import copy
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from tests.support.cluster.resources import Asked, Resource
from tests.support.cluster.status import already_exists, bad_request, conflict, namespace_not_found, not_found

Object = dict[str, Any]
Selects = Callable[[Object], bool]
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Change:
    kind: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    resource: Resource
    object: Object


class Signal(Enum):
    """What a watch can be told besides a change."""

    BOOKMARK = "say how far you are"
    END = "the time is up"


class Store:
    def __init__(self) -> None:
        self.revision = 0
        self._objects: dict[tuple[Resource, str, str], Object] = {}
        self._changes: list[Change] = []
        self._watches: set[asyncio.Queue[Change | Signal]] = set()

    def copy(self) -> Store:
        """One that can be changed without anybody noticing."""
        other = Store()
        other.revision, other._objects = self.revision, dict(self._objects)
        return other

    # --- reading ---

    def has(self, asked: Asked) -> bool:
        return _key(asked, asked.name) in self._objects

    def get(self, asked: Asked) -> Object:
        found = self._objects.get(_key(asked, asked.name))
        if found is None:
            raise not_found(asked, asked.name)
        return found

    def list(self, asked: Asked, selects: Selects) -> list[Object]:
        kind = _kind(asked)
        keys = sorted((key for key in self._objects if key[0] == kind), key=lambda key: key[1:])
        here = [self._objects[key] for key in keys if asked.namespace in ("", key[1])]
        return [each for each in here if selects(each)]

    # --- changing ---

    def create(self, asked: Asked, new: Object) -> Object:
        kind, metadata = _kind(asked), dict(new.get("metadata") or {})
        name = metadata.get("name") or _generated(metadata.get("generateName"))
        if kind.namespaced and not self._has_namespace(asked.namespace):
            raise namespace_not_found(asked.namespace)
        if _key(asked, name) in self._objects:
            raise already_exists(asked, name)
        metadata |= {"name": name, **({"namespace": asked.namespace} if kind.namespaced else {})}
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        return self._put("ADDED", asked, _complete(kind, {**new, "metadata": metadata}))

    def update(self, asked: Asked, new: Object) -> Object:
        old = self.get(asked)
        metadata = dict(new.get("metadata") or {})
        if metadata.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            raise conflict(asked, asked.name)
        # What the server gave stays the server's.
        metadata |= {key: old["metadata"][key] for key in _FIXED if key in old["metadata"]}
        return self._put("MODIFIED", asked, _complete(_kind(asked), {**new, "metadata": metadata}))

    def delete(self, asked: Asked) -> Object:
        old = self.get(asked)
        if asked.resource == "namespaces":
            self._empty(asked.name)
        del self._objects[_key(asked, asked.name)]
        return self._change("DELETED", _kind(asked), copy.deepcopy(old))

    def _empty(self, namespace: str) -> None:
        for key in [key for key in self._objects if key[1] == namespace]:
            self._change("DELETED", key[0], copy.deepcopy(self._objects.pop(key)))

    def _has_namespace(self, name: str) -> bool:
        return any(key[0].plural == "namespaces" and key[2] == name for key in self._objects)

    def _put(self, change: str, asked: Asked, new: Object) -> Object:
        new = copy.deepcopy(new)
        self._objects[_key(asked, new["metadata"]["name"])] = new
        return self._change(change, _kind(asked), new)

    def _change(self, kind: str, resource: Resource, changed: Object) -> Object:
        self.revision += 1
        changed["metadata"]["resourceVersion"] = str(self.revision)
        change = Change(kind, resource, copy.deepcopy(changed))
        self._changes.append(change)
        self._tell(change)
        return changed

    # --- watching ---

    def signal(self, signal: Signal) -> None:
        """To every open watch."""
        self._tell(signal)

    def _tell(self, news: Change | Signal) -> None:
        for watch in self._watches:
            watch.put_nowait(news)

    def watch(
        self, asked: Asked, selects: Selects, *, since: str, initial: bool, seconds: float | None
    ) -> AsyncIterator[Change]:
        """Changes after the revision *since*, a bookmark at each signal and one when it ends, after *seconds*.

        Without *since*, or with *initial*, it begins with what is there as ADDED; *initial* then marks the end of that.
        It listens from this call on, and not only from the first change that is asked for.
        """
        kind = _kind(asked)
        news: asyncio.Queue[Change | Signal] = asyncio.Queue()
        if initial or since in ("", "0"):
            for each in self.list(asked, selects):
                news.put_nowait(Change("ADDED", kind, copy.deepcopy(each)))
        else:
            for change in self._changes[_revision(since) :]:
                news.put_nowait(change)
        if initial:
            news.put_nowait(self._bookmark(kind, {INITIAL_EVENTS_END: "true"}))
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, news.put_nowait, Signal.END)
        self._watches.add(news)
        return self._follow(news, asked, selects)

    async def _follow(
        self, news: asyncio.Queue[Change | Signal], asked: Asked, selects: Selects
    ) -> AsyncIterator[Change]:
        kind = _kind(asked)
        try:
            while True:
                change = await news.get()
                if isinstance(change, Signal):
                    yield self._bookmark(kind)
                    if change is Signal.END:
                        return
                elif change.resource == kind and (change.kind == "BOOKMARK" or _concerns(change, asked, selects)):
                    yield change
        finally:
            self._watches.discard(news)

    def _bookmark(self, kind: Resource, annotations: dict[str, str] | None = None) -> Change:
        metadata: Object = {"resourceVersion": str(self.revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        return Change("BOOKMARK", kind, _complete(kind, {"metadata": metadata}))


_FIXED = ("name", "namespace", "uid", "creationTimestamp")


def _kind(asked: Asked) -> Resource:
    assert asked.kind is not None, "the router answers 404 for what is not in the table"
    return asked.kind


def _key(asked: Asked, name: str) -> tuple[Resource, str, str]:
    kind = _kind(asked)
    return kind, asked.namespace if kind.namespaced else "", name


def _complete(kind: Resource, fields: Object) -> Object:
    return {"kind": kind.kind, "apiVersion": kind.api_version, **{k: v for k, v in fields.items() if k not in _TYPE}}


_TYPE = ("kind", "apiVersion")


def _generated(prefix: str | None) -> str:
    if not prefix:
        raise bad_request("name or generateName is required")
    return prefix + uuid.uuid4().hex[:5]


def _revision(text: str) -> int:
    if not text.isdecimal():
        raise bad_request(f"Invalid value: {text!r}: resourceVersion is no number")
    return int(text)


def _concerns(change: Change, asked: Asked, selects: Selects) -> bool:
    namespace = change.object["metadata"].get("namespace", "")
    return asked.namespace in ("", namespace) and selects(change.object)


# --- selectors ---

_TERM = re.compile(
    r"\s*(?:!\s*(?P<absent>[^\s,=!()]+)"
    r"|(?P<key>[^\s,=!()]+)\s*(?:(?P<sign>==|!=|=)\s*(?P<value>[^\s,()]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<members>[^)]*)\))?)\s*(?:,|$)"
)


def selector(labels: str, fields: str) -> Selects:
    """Whether an object matches both selectors; raises `Refused` with 400 for what cannot be read."""
    conditions = [*_terms(labels, _label), *_terms(fields, _field)]
    return lambda candidate: all(condition(candidate) for condition in conditions)


def _terms(text: str, look_up: Callable[[Object, str], str | None]) -> Iterator[Selects]:
    position = 0
    while position < len(text):
        term = _TERM.match(text, position)
        if term is None:
            raise bad_request(f"unable to parse requirement: {text!r}")
        yield _condition(term.groupdict(), look_up)
        position = term.end()


def _condition(term: dict[str, str | None], look_up: Callable[[Object, str], str | None]) -> Selects:
    key = str(term["key"] or term["absent"])
    if term["absent"]:
        return lambda candidate: look_up(candidate, key) is None
    if term["sign"]:
        wanted, equal = term["value"], term["sign"] != "!="
        return lambda candidate: (look_up(candidate, key) == wanted) == equal
    if term["set"]:
        members, inside = [each.strip() for each in str(term["members"]).split(",")], term["set"] == "in"
        return lambda candidate: (look_up(candidate, key) in members) == inside
    return lambda candidate: look_up(candidate, key) is not None


def _label(candidate: Object, key: str) -> str | None:
    found = (candidate["metadata"].get("labels") or {}).get(key)
    return None if found is None else str(found)


def _field(candidate: Object, key: str) -> str:
    value: Any = candidate
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    # An unset field has the empty value, as in Go.
    return "" if value is None else str(value)
