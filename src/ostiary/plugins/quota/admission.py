"""Admission by quota: at most so many requests of a kind in a span of time, and no larger bodies than so many bytes.

    matching limits  ->  is there room in all of them?  ->  count  ->  settled: a refused request does not count

Called by the gateway after authorization. All workers of a machine count together. A span slides: at no moment have
more than `count` requests been admitted in the span before it, since a request is forgotten up to a sixtieth of the
span later than it had to be, and never earlier.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields, Json
from ostiary.core.counting.counts import MemoryCounts
from ostiary.core.settings.declare import read_settings
from ostiary.core.settings.kinds import Duration, Integer, SettingKind, Text, Texts, Word
from ostiary.core.settings.sections import Sections
from ostiary.interfaces.admission import Admission
from ostiary.interfaces.shared_counts import CountsFull, ImmediateCounts, State
from ostiary.model import Attributes, RequestInfo

BY = ("user", "namespace", "everyone")
PARTS = 60
KEY_LIMIT = 10_000
# The longest Retry-After: a client waits for as long as it says.
LONGEST_RETRY = 60.0
_QUANTITY = re.compile(r"([0-9]{1,18})(k|M|G|T|Ki|Mi|Gi|Ti)?")
_POWERS = {"k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_POWERS |= {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}
_ADMITTED = Admission(admitted=True)


@dataclass(frozen=True)
class ByteCount(SettingKind[int]):
    """A number of bytes, with or without a unit."""

    @property
    def label(self) -> str:
        return "bytes, as in `65536`, `64Ki` or `1Mi`"

    def read(self, fields: Fields, key: str, directory: Path) -> int | None:
        value = fields.plain(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            fields.problem("expected a number of bytes, as in 65536, 64Ki or 1Mi", key)
            return None
        return int(match[1]) * _POWERS.get(match[2] or "", 1)

    def schema(self) -> dict[str, Json]:
        return {"type": ["integer", "string"], "minimum": 0, "pattern": f"^{_QUANTITY.pattern}$"}

    def blank(self) -> int:
        return 0


@dataclass(frozen=True)
class Condition(SettingKind[frozenset[str]]):
    """Left out it means everybody; written down and empty, somebody meant nobody, or forgot to fill it in."""

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: Fields, key: str, directory: Path) -> frozenset[str] | None:
        return frozenset(self._texts.read(fields, key, directory) or ())

    @property
    def _texts(self) -> Texts:
        mistake, hint = "an empty list would be met by every request", "leave it out if that is meant"
        return Texts(self.doc, empty_list=mistake, empty_list_hint=hint, unique=True)

    def schema(self) -> dict[str, Json]:
        return self._texts.schema()

    def blank(self) -> frozenset[str]:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit. An empty condition is met by every request.

    A resource is written ``pods``, ``pods/exec`` or ``deployments.apps``; without a group it is meant in any group.
    *by* says who shares a count: each user has one, or each namespace, or there is one for everyone.
    """

    name: Annotated[str, Text("told to whoever is refused", empty="", unset="`limit-1`, `limit-2`, ...")] = ""
    count: Annotated[
        int | None, Integer("so many requests", least=0, mistake="it must not be negative", unset="no limit")
    ] = None
    per: Annotated[
        timedelta,
        Duration("within this time", least=timedelta(seconds=1), mistake="it must be at least one second"),
    ] = timedelta(hours=1)
    by: Annotated[
        str, Word("who shares the count", BY, mistake=f"expected one of {', '.join(BY)}", hint="", empty="")
    ] = "user"
    largest_body: Annotated[int | None, ByteCount("the largest body", name="maxBytes", unset="no limit")] = None
    users: Annotated[frozenset[str], Condition("for these users", unset="all")] = frozenset()
    groups: Annotated[frozenset[str], Condition("for these groups", unset="all")] = frozenset()
    namespaces: Annotated[frozenset[str], Condition("in these namespaces", unset="all")] = frozenset()
    verbs: Annotated[frozenset[str], Condition("for these verbs", unset="all")] = frozenset()
    resources: Annotated[frozenset[str], Condition("for these resources", unset="all")] = frozenset()

    def check(self, fields: Fields) -> None:
        if self.count is None and self.largest_body is None and fields.is_right("count", "maxBytes"):
            fields.problem("a limit needs count, maxBytes, or both")

    def matches(self, attributes: Attributes) -> bool:
        user, request = attributes.user, attributes.request
        if (self.users or self.groups) and not self._names_user(user.username, user.groups):
            return False
        if self.verbs and request.verb not in self.verbs:
            return False
        if self.namespaces and request.namespace not in self.namespaces:
            return False
        return not self.resources or any(name in self.resources for name in _names(request))

    def _names_user(self, username: str, groups: Sequence[str]) -> bool:
        return username in self.users or not self.groups.isdisjoint(groups)

    def key(self, attributes: Attributes) -> str:
        if self.by == "user":
            return attributes.user.username
        return attributes.request.namespace if self.by == "namespace" else ""


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The settings of the admission provider ``quota``."""

    limits: Annotated[
        tuple[Limit, ...],
        Sections(
            "the limits; each one that matches a request counts",
            Limit,
            "One limit.",
            least=1,
            missing="there must be a limit",
        ),
    ]


def _names(request: RequestInfo) -> tuple[str, ...]:
    """All the ways to write the resource of a request."""
    if not request.is_resource:
        return ()
    subresource = f"/{request.subresource}" if request.subresource else ""
    own = request.resource + subresource
    return (own, f"{request.resource}.{request.api_group}{subresource}", "*")


# How many requests there were in each sixtieth of the span: the number of the first part, and a count for it and for
# each that follows.


def _recent(state: State, oldest: int) -> tuple[int, list[float]]:
    """The counts from the part *oldest* on; the first of them is not zero."""
    first, counts = (int(state[0]), list(state[1:])) if state else (oldest, [])
    first, counts = max(first, oldest), counts[max(0, oldest - first) :]
    while counts and not counts[0]:
        first += 1
        counts.pop(0)
    return first, counts


class _LimitWindows:
    """The windows of one limit, by key. When there are too many keys, new ones are refused, not old ones forgotten.

    `settled` does not say which of several equal requests it is about. So a refusal settles the oldest of them and a
    success the newest: in any case, what stays counted stays for long enough.
    """

    def __init__(self, limit: Limit, counts: ImmediateCounts, name: str) -> None:
        self.limit = limit
        self._shared = counts
        self._prefix = f"quota/{name}/{limit.name}/"
        self._seconds = limit.per.total_seconds()
        self._part_seconds = self._seconds / PARTS
        # The parts in which those were counted that this worker has admitted, and whose answer is not known yet.
        self._unsettled: dict[str, deque[int]] = {}

    def add(self, key: str) -> tuple[float, int]:
        """Count one more and return zero; or how many seconds there is no room, and how many are counted."""
        if not self.limit.count:
            return self._seconds, 0
        try:
            wait, in_use, part = self._shared.update_now(self._prefix + key, self._add, wide=True)
        except CountsFull:
            return self._part_seconds, 0
        if not wait:
            self._unsettled.setdefault(key, deque()).append(part)
        return wait, in_use

    def take_back(self, key: str) -> None:
        """What was just counted does not count: another limit has refused it."""
        part = self._pop(key, newest=True)
        if part is not None:
            self._shared.update_now(self._prefix + key, partial(self._remove, part), wide=True)

    def settle(self, key: str, *, refused: bool) -> None:
        part = self._pop(key, newest=not refused)
        if part is not None and refused:
            # Any of them may be the one that was refused: the one that would be forgotten first is.
            self._shared.update_now(self._prefix + key, partial(self._remove_oldest, part), wide=True)

    def _pop(self, key: str, *, newest: bool) -> int | None:
        unsettled = self._unsettled.get(key)
        if not unsettled:
            return None
        part = unsettled.pop() if newest else unsettled.popleft()
        if not unsettled:
            del self._unsettled[key]
        return part

    def __len__(self) -> int:
        assert isinstance(self._shared, MemoryCounts), "the counts of other workers are unknown"
        return len(self._shared)

    # --- changes of a window ---

    def _add(self, state: State, now: float) -> tuple[State, float, tuple[float, int, int]]:
        part = int(now // self._part_seconds)
        first, counts = _recent(state, part - PARTS)
        total = int(sum(counts))
        assert self.limit.count is not None, "only what has a count is counted"
        if total >= self.limit.count:
            leaves_at = (first + PARTS + 1) * self._part_seconds
            return *self._pack_window(first, counts, now), (max(leaves_at - now, 0.001), total, part)
        first = first if counts else part
        counts += [0.0] * (part - first + 1 - len(counts))
        counts[part - first] += 1
        return *self._pack_window(first, counts, now), (0.0, total, part)

    def _remove(self, part: int, state: State, now: float) -> tuple[State, float, None]:
        first, counts = _recent(state, int(now // self._part_seconds) - PARTS)
        if first <= part < first + len(counts) and counts[part - first]:
            counts[part - first] -= 1
        return *self._pack_window(first, counts, now), None

    def _remove_oldest(self, part: int, state: State, now: float) -> tuple[State, float, None]:
        first, counts = _recent(state, int(now // self._part_seconds) - PARTS)
        # One that has been forgotten anyway is not taken from the others.
        if counts and part >= first:
            counts[0] -= 1
        return *self._pack_window(first, counts, now), None

    def _pack_window(self, first: int, counts: list[float], now: float) -> tuple[State, float]:
        while counts and not counts[-1]:
            counts.pop()
        if not counts:
            return (), 0.0
        until = (first + len(counts) + PARTS) * self._part_seconds
        return (float(first), *counts), until - now


class RequestQuota:
    """Refuses what exceeds a limit: with 429 if there is room again within a minute, else with 403."""

    def __init__(
        self,
        limits: Sequence[Limit],
        *,
        clock: Clock = SYSTEM_CLOCK,
        key_limit: int = KEY_LIMIT,
        counts: ImmediateCounts | None = None,
        name: str = "",
    ) -> None:
        shared = MemoryCounts(clock=clock, wide_limit=key_limit) if counts is None else counts
        self._limits = tuple(_LimitWindows(limit, shared, name) for limit in limits)

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        settings = read_settings(QuotaSettings, fields, context.directory)
        limits = [
            replace(limit, name=limit.name or f"limit-{number}")
            for number, limit in enumerate(settings.limits, start=1)
        ]
        if len({limit.name for limit in limits}) < len(limits):
            fields.problem("two limits have the same name", "limits")
        return cls(limits, clock=context.clock, counts=context.counts, name=context.name)

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        matching = [counts for counts in self._limits if counts.limit.matches(attributes)]
        counted: list[_LimitWindows] = []
        for counts in matching:
            refusal = _too_large(counts.limit, size) or _refusal_if_full(counts, attributes)
            if refusal is not None:
                # A request that one limit refuses is not charged to the others.
                for other in counted:
                    other.take_back(other.limit.key(attributes))
                return refusal
            if counts.limit.count is not None:
                counted.append(counts)
        return _ADMITTED

    def settled(self, attributes: Attributes, *, status: int) -> None:
        for counts in self._limits:
            if counts.limit.count is not None and counts.limit.matches(attributes):
                counts.settle(counts.limit.key(attributes), refused=status >= 400)


def _too_large(limit: Limit, size: int | None) -> Admission | None:
    largest = limit.largest_body
    if largest is None or (size is not None and size <= largest):
        return None
    if size is None:
        return Admission(False, f"exceeded quota: {limit.name}, the length of the body must be announced")
    return Admission(False, f"exceeded quota: {limit.name}, requested: bytes={size}, limited: bytes={largest}")


def _refusal_if_full(counts: _LimitWindows, attributes: Attributes) -> Admission | None:
    """None if there was room, and it is counted."""
    limit = counts.limit
    if limit.count is None:
        return None
    seconds, in_use = counts.add(limit.key(attributes))
    if not seconds:
        return None
    usage = f"used: requests={in_use}, limited: requests={limit.count}"
    reason = f"exceeded quota: {limit.name}, requested: requests=1, {usage}"
    return Admission(False, reason, retry_after=seconds if limit.count and seconds <= LONGEST_RETRY else None)


# --- the configuration ---
