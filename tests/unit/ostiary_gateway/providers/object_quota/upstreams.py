"""An upstream that keeps objects in a dict, as an admission provider sees it."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ostiary.errors import ProviderError
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.interfaces.admission import UpstreamAnswer, WriteOutcome, WriteRequest, WriteResult
from ostiary_gateway.interfaces.store_capabilities import ObjectStore

Object = dict[str, Any]
ALICE = UserInfo("alice", groups=("dev", "ops"))
PAGE = 3


def pod(name: str, *cpus: object) -> Object:
    containers = [{"resources": {"requests": {"cpu": cpu}}} for cpu in cpus]
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}


class StoredObjects:
    """Implements `ostiary_gateway.interfaces.admission.UpstreamApi`. Pages are small, so that lists have several.

    While `gate` is shut, lists wait; `reached` is set when one does. `adds` is added to each new object, as admission
    at the upstream does.
    """

    upstreams: tuple[str, ...] = ("cluster",)

    def __init__(self, objects: ObjectStore | None = None) -> None:
        self.objects = objects
        self.stored: dict[tuple[str, str, str], Object] = {}
        self.asked: list[tuple[str, str, UserInfo | None]] = []
        self.down = False
        self.adds: Object = {}
        self.reached, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self._uids = 0

    # --- as it is asked ---

    async def ask(
        self,
        upstream: str,
        target: str,
        *,
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        user: UserInfo | None = None,
    ) -> UpstreamAnswer:
        self.asked.append((method, target, user))
        if self.down:
            raise ProviderError("an upstream could not be asked", cause="down")
        parts = urlsplit(target)
        query = parse_qs(parts.query)
        if parts.path.startswith("/apis/") and parts.path.count("/") == 2:
            return _json(200, {"preferredVersion": {"version": "v1"}})
        resource, namespace, name = _place(parts.path)
        if method != "GET":
            assert query["dryRun"] == ["All"], "nothing but a dry run is asked for"
            kept, self.stored = self.stored, copy.deepcopy(self.stored)
            try:
                return self.do(method, resource, namespace, name, body)
            finally:
                self.stored = kept
        if name:
            document = self.stored.get((resource, namespace, name))
            return _json(404, {"kind": "Status"}) if document is None else _json(200, document)
        items = [
            each for (kind, place, _), each in sorted(self.stored.items()) if _is_in(kind, place, resource, namespace)
        ]
        self.reached.set()
        await self.gate.wait()
        start = int(query.get("continue", ["0"])[0])
        token = {"continue": str(start + PAGE)} if start + PAGE < len(items) else {}
        return _json(200, {"items": items[start : start + PAGE], "metadata": token})

    # --- as it does things ---

    def do(self, method: str, resource: str, namespace: str, name: str, body: bytes) -> UpstreamAnswer:
        sent = json.loads(body) if body else {}
        key = (resource, namespace, name or sent.get("metadata", {}).get("name", ""))
        old = self.stored.get(key)
        match method:
            case "POST" if old is not None:
                return _json(409, {"kind": "Status", "reason": "AlreadyExists"})
            case "DELETE":
                return _json(200 if self.stored.pop(key, None) else 404, {"kind": "Status"})
            case "PATCH" if old is None and sent.get("apply") is None:
                return _json(404, {"kind": "Status"})
        new = _merged(_merged(old or {}, sent) if method == "PATCH" else sent, self.adds)
        if resource == "limited":
            return _json(422, {"kind": "Status", "reason": "Invalid"})
        self._uids += 1
        uid = (old or {}).get("metadata", {}).get("uid") or f"uid-{self._uids}"
        new["metadata"] = {**new.get("metadata", {}), "name": key[2], "namespace": namespace, "uid": uid}
        self.stored[key] = new
        return _json(200 if old is not None else 201, new)

    def serve(self, request: WriteRequest) -> WriteResult:
        """Do what *request* asks for; what came of it, as the gateway tells a hold."""
        info = request.attributes.request
        answer = self.do(info.method, _qualified(info), info.namespace, info.name, request.body or b"")
        outcome = WriteOutcome.DONE if answer.status < 300 else WriteOutcome.NOT_DONE
        return WriteResult(outcome, answer.status, answer.body)

    def count(self, resource: str = "pods", namespace: str = "team") -> int:
        return sum(_is_in(kind, place, resource, namespace) for kind, place, _ in self.stored)


def write(
    verb: str,
    body: Object | None = None,
    *,
    name: str = "",
    resource: str = "pods",
    namespace: str = "team",
    query: str = "",
    user: UserInfo = ALICE,
    subresource: str = "",
) -> WriteRequest:
    """A request as the gateway hands it over."""
    resource_name, _, group = resource.partition(".")
    method = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}[
        verb
    ]
    root = f"/apis/{group}/v1" if group else "/api/v1"
    path = "/".join(filter(None, (f"{root}/namespaces/{namespace}/{resource_name}", name, subresource)))
    info = RequestInfo(
        verb,
        method,
        path,
        is_resource=True,
        api_group=group,
        api_version="v1",
        namespace=namespace,
        resource=resource_name,
        name=name,
        subresource=subresource,
        upstream="cluster",
    )
    content = None if body is None else json.dumps(body).encode()
    headers = (("Content-Type", "application/json"),)
    return WriteRequest(Attributes(user, info), path + (f"?{query}" if query else ""), headers, content)


def _place(path: str) -> tuple[str, str, str]:
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return (f"{rest[0]}.{group}" if group else rest[0]), namespace, rest[1] if len(rest) > 1 else ""


def _qualified(info: RequestInfo) -> str:
    return f"{info.resource}.{info.api_group}" if info.api_group else info.resource


def _is_in(kind: str, place: str, resource: str, namespace: str) -> bool:
    return kind == resource and namespace in ("", place)


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    return {**merged, **{key: _merged(merged.get(key), value) for key, value in patch.items()}}


def _json(status: int, document: Object) -> UpstreamAnswer:
    return UpstreamAnswer(status, "application/json", json.dumps(document).encode())
