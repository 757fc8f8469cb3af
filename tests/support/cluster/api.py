"""What each path answers: discovery, stored objects, reviews, and the pods' streams."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import yaml

from ostiary.model import UserInfo
from ostiary.wire.go_json import go_json
from tests.support.cluster import patch, protobuf, resources
from tests.support.cluster.access_reviews import reviewed_user
from tests.support.cluster.account_tokens import DISCOVERY_PATH, JWKS_PATH, JWKS_TYPE, AccountTokens
from tests.support.cluster.http import Answer, Exchange, Record, json_answer, text_answer
from tests.support.cluster.kubelet import Container, serve_exec, serve_log, serve_port_forward
from tests.support.cluster.resources import Asked, Resource
from tests.support.cluster.status import (
    Refused,
    bad_request,
    deleted,
    forbidden,
    method_not_allowed,
    unsupported_media_type,
)
from tests.support.cluster.store import Change, Object, Store, selector
from tests.support.cluster.token_requests import API_SERVER_AUDIENCE, checked_token_request

VERSION = {
    "major": "1",
    "minor": "33",
    "gitVersion": "v1.33.1",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2025-05-15T00:00:00Z",
    "goVersion": "go1.24.2",
    "compiler": "gc",
    "platform": "linux/amd64",
}
Refuse = Callable[[UserInfo, Asked], str | None]
"""Called for every request: None lets it pass, a text is the reason of a 403."""

Admit = Callable[[Asked, Object], Object]
"""Called with what is written: returns what is stored."""


class Api:
    def __init__(self) -> None:
        self.store = Store()
        self.containers: dict[tuple[str, str], Container] = {}
        self.refuse: Refuse | None = None
        self.admit: Admit | None = None
        self.accounts = AccountTokens()
        self.accept_token: Callable[[str, UserInfo], None] = lambda token, user: None
        self.server = ""
        # Whether discovery is answered at once for all groups, to whoever asks for that.
        self.aggregates = False
        # Groups without resources, as of a CustomResourceDefinition that was created a moment ago.
        self.more_groups: tuple[str, ...] = ()

    def container(self, namespace: str, pod: str) -> Container:
        return self.containers.setdefault((namespace, pod), Container())

    async def serve(self, exchange: Exchange, user: UserInfo) -> None:
        asked = resources.read_asked(exchange.record)
        reason = self.refuse(user, asked) if self.refuse else None
        if reason is not None:
            raise forbidden(user.username, asked, reason)
        kind = asked.kind
        if asked.path in (DISCOVERY_PATH, JWKS_PATH):
            await exchange.answer(self._account_keys(exchange.record, asked.path))
        elif not asked.resource:
            await exchange.answer(self._groups(exchange.record, asked) or _non_resource(asked))
        elif kind is None:
            await exchange.answer(_no_such_page())
        elif asked.subresource:
            await self._stream(exchange, asked)
        elif kind.plural.endswith("reviews"):
            await exchange.answer(self._review(exchange.record, asked, user))
        else:
            await self._object(exchange, asked, kind)

    # --- discovery ---

    def _groups(self, record: Record, asked: Asked) -> Answer | None:
        """What depends on the groups that there are now; None for any other path."""
        accept = ",".join(record.values("Accept"))
        match asked.path.strip("/").split("/"):
            case ["api" | "apis" as root] if self.aggregates and "as=APIGroupDiscoveryList" in accept:
                version = "v2" if ";v=v2;" in accept else "v2beta1"
                groups = self.more_groups if root == "apis" else ()
                return json_answer(
                    200,
                    resources.aggregated(root, version, groups),
                    {"Content-Type": resources.aggregated_type(version)},
                )
            case ["apis"]:
                return json_answer(200, resources.api_groups(self.more_groups))
            case ["apis", group] if group in self.more_groups:
                return json_answer(200, resources.api_group(group, self.more_groups))
        return None

    # --- stored objects ---

    async def _object(self, exchange: Exchange, asked: Asked, kind: Resource) -> None:
        if asked.verb == "watch":
            await exchange.stream("application/json", self._events(exchange.record, asked))
            return
        await exchange.answer(self._stored(exchange.record, asked, kind))

    def _stored(self, record: Record, asked: Asked, kind: Resource) -> Answer:
        # A dry run does everything but keep what comes of it.
        store = self.store.copy() if _is_dry_run(record) else self.store
        match asked.verb:
            case "get":
                return json_answer(200, store.get(asked))
            case "list":
                return json_answer(200, self._page(record, asked, kind))
            case "create" if not asked.name:
                return json_answer(201, store.create(asked, self._admitted(asked, _body(record))))
            case "update":
                return json_answer(200, store.update(asked, self._admitted(asked, _body(record))))
            case "patch" if _content_type(record) == patch.APPLY:
                return self._applied(store, asked, _decoded(record, yaml.safe_load))
            case "patch":
                patched = _patched(record, store.get(asked))
                return json_answer(200, store.update(asked, self._admitted(asked, patched)))
            case "delete":
                return json_answer(200, self._deleted(store, asked))
            case "deletecollection":
                chosen = store.list(asked, _selector(record))
                gone = [self._deleted(store, _named(asked, each)) and each for each in chosen]
                return json_answer(200, self._list(asked, kind, gone))
        raise method_not_allowed()

    def _admitted(self, asked: Asked, new: Object) -> Object:
        """As the admission of the API server changes what is written: a LimitRange that adds defaults, say."""
        return new if self.admit is None else self.admit(asked, copy.deepcopy(new))

    def _applied(self, store: Store, asked: Asked, applied: Object) -> Answer:
        """Server-side apply: merged into what is there, or created."""
        if not store.has(asked):
            return json_answer(201, store.create(asked, self._admitted(asked, applied)))
        merged: Object = patch.merge(store.get(asked), applied)
        return json_answer(200, store.update(asked, self._admitted(asked, merged)))

    def _deleted(self, store: Store, asked: Asked) -> Object:
        """An object with finalizers stays until they are gone."""
        old = store.get(asked)
        if old["metadata"].get("finalizers"):
            marked = copy.deepcopy(old)
            marked["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return store.update(asked, marked)
        return deleted(asked, store.delete(asked)["metadata"]["uid"])

    def _page(self, record: Record, asked: Asked, kind: Resource) -> Object:
        """In pages, if the client asks for them. Unlike in Kubernetes a page is of the time when it is asked for."""
        items = self.store.list(asked, _selector(record))
        limit, start = record.parameter("limit"), int(record.parameter("continue") or 0)
        end = start + int(limit) if limit.isdecimal() and limit != "0" else len(items)
        page = self._list(asked, kind, items[start:end])
        if end < len(items):
            page["metadata"]["continue"] = str(end)
        return page

    def _list(self, asked: Asked, kind: Resource, items: list[Object]) -> Object:
        # The items of a list do not repeat what the list's kind says.
        bare = [{key: value for key, value in each.items() if key not in ("kind", "apiVersion")} for each in items]
        metadata = {"resourceVersion": str(self.store.revision)}
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": bare}

    def _events(self, record: Record, asked: Asked) -> AsyncIterator[bytes]:
        seconds = record.parameter("timeoutSeconds")
        changes = self.store.watch(
            asked,
            _selector(record),
            since=record.parameter("resourceVersion"),
            initial=record.flag("sendInitialEvents"),
            seconds=float(seconds) if seconds.isdecimal() else None,
        )
        return _event_lines(changes, bookmarks=record.flag("allowWatchBookmarks"))

    # --- streams of pods ---

    async def _stream(self, exchange: Exchange, asked: Asked) -> None:
        record, kind = exchange.record, asked.kind
        if kind is None or asked.subresource not in dict(kind.subresources):
            await exchange.answer(_no_such_page())
            return
        if asked.subresource == "token":
            account = self.store.get(asked)
            await exchange.answer(self._token_request(record, asked, account))
            return
        pod = self.store.get(asked)
        container = self.container(asked.namespace, asked.name)
        if asked.subresource == "portforward":
            await serve_port_forward(exchange, container.ports)
        elif asked.subresource == "exec":
            _container_name(record, pod)
            await serve_exec(exchange)
        else:
            await serve_log(exchange, container.log(_container_name(record, pod)))

    # --- tokens of service accounts ---

    def _token_request(self, record: Record, asked: Asked, account: Object) -> Answer:
        request = _body(record)
        spec = checked_token_request(request, asked, account, self.store)
        reference = spec.get("boundObjectRef") or {}
        pod = self._find("pods", asked.namespace, reference["name"]) if reference.get("kind") == "Pod" else None
        token, expires = self.accounts.issue(account, spec, pod)
        if API_SERVER_AUDIENCE in spec["audiences"]:
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{asked.namespace}")
            self.accept_token(token, UserInfo(f"system:serviceaccount:{asked.namespace}:{asked.name}", groups=groups))
        status = {"token": token, "expirationTimestamp": expires}
        type_ = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        return json_answer(201, {**type_, "metadata": {"creationTimestamp": None}, "spec": spec, "status": status})

    def _account_keys(self, record: Record, path: str) -> Answer:
        if path == DISCOVERY_PATH:
            return json_answer(200, self.accounts.discovery(self.server))
        # As kube-apiserver has it: JSON under another name is not the same.
        if not {JWKS_TYPE, "*/*"} & {each.partition(";")[0].strip() for each in record.values("Accept")[0].split(",")}:
            return text_answer(406, "406: Not Acceptable\n")
        return json_answer(200, self.accounts.jwks())

    def _find(self, resource: str, namespace: str, name: str) -> Object | None:
        try:
            return self.store.get(Asked("get", "", "", "v1", resource, namespace=namespace, name=name))
        except Refused:
            return None

    # --- reviews ---

    def _review(self, record: Record, asked: Asked, user: UserInfo) -> Answer:
        if asked.verb != "create":
            raise method_not_allowed()
        review = _body(record)
        spec = review.get("spec") or {}
        match asked.resource:
            case "selfsubjectreviews":
                status: Object = {"userInfo": _user_info(user)}
            case "tokenreviews":
                status = self.accounts.review(spec, self._find, API_SERVER_AUDIENCE)
            case "selfsubjectaccessreviews" | "subjectaccessreviews":
                subject = user if asked.resource.startswith("self") else reviewed_user(spec)
                reason = self.refuse(subject, _reviewed(spec)) if self.refuse else None
                status = {"allowed": reason is None, **({"reason": reason} if reason else {})}
            case _:
                status = self._rules()
        type_ = {key: review.get(key) for key in ("kind", "apiVersion")}
        return json_answer(201, {**type_, "metadata": {"creationTimestamp": None}, "spec": spec, "status": status})

    def _rules(self) -> Object:
        if self.refuse is not None:
            return {"resourceRules": [], "nonResourceRules": [], "incomplete": True}
        return {
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        }


async def _event_lines(changes: AsyncIterator[Change], *, bookmarks: bool) -> AsyncIterator[bytes]:
    async for change in changes:
        if bookmarks or change.kind != "BOOKMARK":
            yield go_json({"type": change.kind, "object": change.object}).encode() + b"\n"


def _non_resource(asked: Asked) -> Answer:
    if asked.path in ("/healthz", "/livez", "/readyz"):
        return text_answer(200, "ok")
    match asked.path.strip("/").split("/", 2):
        case ["version"]:
            found: Any = VERSION
        case ["api"]:
            found = resources.api_versions()
        case ["apis"]:
            found = resources.api_groups()
        case ["api", version]:
            found = resources.api_resources("", version)
        case ["apis", group]:
            found = resources.api_group(group)
        case ["apis", group, version]:
            found = resources.api_resources(group, version)
        case ["openapi", "v3"]:
            found = resources.openapi_index()
        case ["openapi", "v3", name]:
            found = resources.openapi_document(name)
        case _:
            found = None
    return _no_such_page() if found is None else json_answer(200, found)


def _no_such_page() -> Answer:
    return text_answer(404, "404 page not found\n")


def _is_dry_run(record: Record) -> bool:
    return record.parameter("dryRun") == "All"


def _selector(record: Record) -> Callable[[Object], bool]:
    return selector(record.parameter("labelSelector"), record.parameter("fieldSelector"))


def _content_type(record: Record) -> str:
    return (record.value("Content-Type") or "application/json").partition(";")[0].strip()


def _body(record: Record) -> Object:
    content_type = _content_type(record)
    decoders: dict[str, Callable[[bytes], Any]] = {
        "application/json": json.loads,
        protobuf.CONTENT_TYPE: protobuf.decode,
    }
    if content_type not in decoders:
        raise unsupported_media_type(list(decoders))
    return _decoded(record, decoders[content_type])


def _decoded(record: Record, decode: Callable[[bytes], Any]) -> Object:
    try:
        value = decode(record.body)
    except (ValueError, KeyError, IndexError) as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from None
    if not isinstance(value, dict):
        raise bad_request("the object provided is unrecognized (must be of type object)")
    return value


def _patched(record: Record, target: Object) -> Object:
    merges = {patch.MERGE: patch.merge, patch.STRATEGIC: patch.strategic_merge}
    merge = merges.get(_content_type(record))
    if merge is None:
        raise unsupported_media_type(patch.ACCEPTED)
    patched: Object = merge(target, _decoded(record, json.loads))
    return patched


def _named(asked: Asked, item: Object) -> Asked:
    metadata = item["metadata"]
    return Asked(
        "delete",
        asked.path,
        asked.group,
        asked.version,
        asked.resource,
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
    )


def _container_name(record: Record, pod: Object) -> str:
    names = [each["name"] for each in pod["spec"]["containers"]]
    name = record.parameter("container")
    if not name and len(names) > 1:
        choice = " ".join(names)
        pod_name = pod["metadata"]["name"]
        raise bad_request(f"a container name must be specified for pod {pod_name}, choose one of: [{choice}]")
    if name and name not in names:
        raise bad_request(f"container {name} is not valid for pod {pod['metadata']['name']}")
    return name or str(names[0])


def _user_info(user: UserInfo) -> Object:
    fields: Object = {"username": user.username, "uid": user.uid, "groups": list(user.groups)}
    fields["extra"] = {key: list(values) for key, values in user.extra}
    return {key: value for key, value in fields.items() if value}


def _reviewed(spec: Object) -> Asked:
    path = spec.get("nonResourceAttributes")
    if path is not None:
        return Asked(path.get("verb", ""), path.get("path", ""))
    wanted = spec.get("resourceAttributes") or {}
    names = ("group", "version", "resource", "subresource", "namespace", "name")
    return Asked(wanted.get("verb", ""), "", **{name: wanted.get(name, "") for name in names})
