"""Routing of requests to API plugins, and the merged discovery and OpenAPI documents.

/apis, /openapi/v2, /openapi/v3               merged
/apis/<group>, /apis/<group>/<version>        served here from the plugin's last discovery
/apis/<group>/<version>/...                   forwarded to the plugin, after the same steps as any request
/openapi/v3/apis/<group>/<version>            forwarded to it
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from ostiary.errors import ProviderError
from ostiary.wire import status
from ostiary_gateway.http1.headers import BadHeader
from ostiary_gateway.interfaces.admission import UpstreamAnswer
from ostiary_gateway.proxy.api_plugin_registry import ApiPlugins
from ostiary_gateway.proxy.api_plugin_watch import WatchedPlugin
from ostiary_gateway.proxy.context import GroupRoute, RequestContext
from ostiary_gateway.proxy.responses import send_status
from ostiary_gateway.proxy.upstream_client import UpstreamClient
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.wire.discovery import (
    JSON,
    ListedGroup,
    accepted_json,
    group_json,
    merge_groups,
    merge_openapi_index,
    merge_openapi_v2,
    resource_list_json,
)

log = logging.getLogger("ostiary.gateway")

# Maximum number of cached merged documents: the same ones are requested again and again.
MOST_KEPT = 8
LARGEST_KEPT = 8 * 1024 * 1024
# Concurrent documents per user. `UpstreamClient` has capacity for a few users.
MOST_PER_USER = 4
# Larger documents are merged in a thread, so that other requests continue meanwhile.
AT_ONCE_BYTES = 64 * 1024
LONGEST_ACCEPT = 2048


class Merging:
    """Discovery and OpenAPI of an upstream, merged with the groups of API plugins and providers.

    The upstream is queried as the user, so it decides what they may see, and its errors are passed through. What a
    plugin serves comes from its last discovery; if it does not respond, its group is stale or missing and the rest is
    unaffected. *own* are groups that providers serve, at the root of the gateway.
    """

    def __init__(self, plugins: ApiPlugins, requests: UpstreamClient, own: Sequence[ListedGroup] = ()) -> None:
        self._plugins = plugins
        self._requests = requests
        self._own = tuple(own)
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._large = asyncio.Lock()
        self._asking: Counter[str] = Counter()

    async def send_groups(self, upstream: Upstream, ctx: RequestContext) -> int:
        answer = await self._ask(upstream, "/apis", ctx)
        if answer is None or answer.status != 200:
            return self._pass_on(ctx, answer)
        groups = self._groups(upstream)

        def merge(body: bytes) -> bytes:
            merged = merge_groups(body, groups)
            if merged.taken:
                raise _Taken(merged.taken)
            return merged.body

        try:
            body = await self._merge(("groups", groups), answer.body, merge)
        except _Taken as taken:
            self._record_conflicts(upstream, taken.groups)
            left = tuple(group for group in groups if group.name not in taken.groups)
            body = merge_groups(answer.body, left).body
        except ValueError as error:
            return self._report_unreadable(upstream, ctx, error)
        return _send(ctx, answer.content_type, body)

    async def send_openapi_index(self, upstream: Upstream, ctx: RequestContext) -> int:
        answer = await self._ask(upstream, "/openapi/v3", ctx)
        if answer is None or answer.status != 200:
            return self._pass_on(ctx, answer)
        groups = tuple(group for group in self._groups(upstream) if group.is_fresh)
        try:
            body = await self._merge(("v3", groups), answer.body, lambda text: merge_openapi_index(text, groups))
        except ValueError as error:
            return self._report_unreadable(upstream, ctx, error)
        return _send(ctx, answer.content_type, body)

    async def send_openapi_v2(self, upstream: Upstream, ctx: RequestContext) -> int:
        """Send the merged document, as JSON only. A protobuf response is passed through unchanged."""
        answer = await self._ask(upstream, "/openapi/v2", ctx)
        if answer is None or answer.status != 200 or not answer.content_type.startswith(JSON):
            return self._pass_on(ctx, answer)
        documents = await self._openapi_v2_of_plugins(upstream)
        key = tuple((group, hashlib.sha256(text).digest()) for group, text in documents)
        try:
            body = await self._merge(("v2", key), answer.body, lambda text: merge_openapi_v2(text, documents))
        except ValueError as error:
            return self._report_unreadable(upstream, ctx, error)
        return _send(ctx, answer.content_type, body)

    # --- merging ---

    def _groups(self, upstream: Upstream) -> tuple[ListedGroup, ...]:
        """Return the groups to merge, without conflicts: a client must find the upstream's group and nothing else."""
        plugins = [each.group for each in self._plugins.beside(upstream.name) if not each.has_conflict]
        own = self._own if upstream.settings.prefix == "/" else ()
        return (*own, *plugins)

    async def _openapi_v2_of_plugins(self, upstream: Upstream) -> list[tuple[str, bytes]]:
        available = [each for each in self._plugins.beside(upstream.name) if each.is_available]
        documents = await asyncio.gather(*(each.openapi_v2() for each in available), return_exceptions=True)
        return [
            (each.plugin.group, document)
            for each, document in zip(available, documents, strict=True)
            if isinstance(document, bytes)
        ]

    def _record_conflicts(self, upstream: Upstream, groups: Sequence[str]) -> None:
        for group in groups:
            watched = self._plugins.find(upstream.name, group)
            if watched is not None:
                watched.record_conflict()

    async def _merge(self, key: Hashable, body: bytes, merge: Callable[[bytes], bytes]) -> bytes:
        """Return the cached result, or the result of *merge*."""
        key = (key, hashlib.sha256(body).digest())
        if len(body) <= AT_ONCE_BYTES:
            return self._kept.get(key) or self._keep(key, merge(body))
        # One at a time: a large document needs many times its size while it is parsed.
        async with self._large:
            return self._kept.get(key) or self._keep(key, await asyncio.to_thread(merge, body))

    def _keep(self, key: Hashable, merged: bytes) -> bytes:
        if len(merged) <= LARGEST_KEPT:
            self._kept[key] = merged
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return merged

    # --- requests and responses ---

    async def _ask(self, upstream: Upstream, path: str, ctx: RequestContext) -> UpstreamAnswer | None:
        """Return the upstream's response to this user; None if it cannot be reached."""
        payer = (ctx.plan.actor or ctx.plan.user).username
        if self._asking[payer] >= MOST_PER_USER:
            return UpstreamAnswer(*_TOO_MANY)
        self._asking[payer] += 1
        try:
            return await self._ask_as_user(upstream, path, ctx)
        finally:
            self._asking[payer] -= 1
            if not self._asking[payer]:
                del self._asking[payer]

    async def _ask_as_user(self, upstream: Upstream, path: str, ctx: RequestContext) -> UpstreamAnswer | None:
        user, accept = ctx.plan.user, _header(ctx, b"accept")
        headers = [("Accept", accepted_json(accept) or accept)]
        try:
            if upstream.assertions is not None:
                name, _, value = upstream.assertions.line(ctx.token.session, user).decode("latin-1").partition(":")
                headers.append((name, value.strip()))
            return await self._requests.ask_place(upstream, path, headers=headers, user=user)
        except (ProviderError, BadHeader) as error:
            log.debug("an upstream could not be asked for its API groups", extra={"cause": str(error)})
            return None

    def _pass_on(self, ctx: RequestContext, answer: UpstreamAnswer | None) -> int:
        """Send what is not merged: an error, or a document in a format that we do not write."""
        if answer is None:
            return send_status(ctx, status.upstream_failed(503))
        if answer.status == 401:
            # The 401 is about the gateway's own credential, not the client's.
            return send_status(ctx, status.gateway_unauthenticated())
        if 300 <= answer.status < 400:
            return send_status(ctx, status.upstream_failed(502))
        return _send(ctx, answer.content_type, answer.body, code=answer.status)

    def _report_unreadable(self, upstream: Upstream, ctx: RequestContext, error: ValueError) -> int:
        fields = {"upstream": upstream.name, "cause": str(error), "request_id": ctx.audit_id}
        log.warning("a discovery document of an upstream cannot be merged", extra=fields)
        return send_status(ctx, status.upstream_failed(502))


_TOO_MANY = (429, JSON, status.too_many(1).body)


class _Taken(Exception):
    def __init__(self, groups: tuple[str, ...]) -> None:
        super().__init__()
        self.groups = groups


def _send(ctx: RequestContext, content_type: str, body: bytes, *, code: int = 200) -> int:
    if ctx.exchange.gone:
        return 0
    headers = [
        (b"Audit-Id", ctx.audit_id.encode()),
        (b"Cache-Control", b"no-cache, private"),
        (b"Vary", b"Accept"),
        (b"X-Content-Type-Options", b"nosniff"),
    ]
    if code == 200:
        tag = b'"' + hashlib.sha256(body).hexdigest().upper().encode() + b'"'
        headers.append((b"ETag", tag))
        if tag.decode() in [each.strip() for each in _header(ctx, b"if-none-match").split(",")]:
            code, body = 304, b""
    if body:
        headers.append((b"Content-Type", content_type.encode("latin-1") or b"application/json"))
    ctx.exchange.respond(code, headers, body)
    return code


def _header(ctx: RequestContext, name: bytes) -> str:
    values = [value.decode("latin-1") for key, value in ctx.exchange.request.headers if key.lower() == name]
    return ",".join(values)[:LONGEST_ACCEPT]


class GroupRoutes:
    """Route requests below API groups.

    Implements `ostiary_gateway.proxy.context.ApiGroups`. *own* are groups that providers serve. The group is read from
    the same path that the mapper reads, so that authorization and routing cannot differ.
    """

    def __init__(self, plugins: ApiPlugins, merging: Merging, own: Sequence[ListedGroup] = ()) -> None:
        self._plugins = plugins
        self._merging = merging
        self._own = own

    def __bool__(self) -> bool:
        return bool(self._plugins) or bool(self._own)

    def find(self, upstream: Upstream, method: str, path: str) -> GroupRoute | None:
        match path.strip("/").split("/"):
            case ["apis"] if self._merges(upstream, method):
                return GroupRoute(handler=partial(self._merging.send_groups, upstream))
            case ["openapi", "v2" | "v3" as version] if self._merges(upstream, method):
                send = self._merging.send_openapi_v2 if version == "v2" else self._merging.send_openapi_index
                return GroupRoute(handler=partial(send, upstream))
            case ["apis", group, *rest]:
                watched = self._plugins.find(upstream.name, group)
                return None if watched is None else _route(watched, method, rest)
            case ["openapi", "v3", "apis", group, *rest]:
                watched = self._plugins.find(upstream.name, group)
                return None if watched is None else _forwarded(watched, rest)
        return None

    def _merges(self, upstream: Upstream, method: str) -> bool:
        return method == "GET" and (bool(self._own) or bool(self._plugins.beside(upstream.name)))


def _route(watched: WatchedPlugin, method: str, rest: list[str]) -> GroupRoute:
    if len(rest) <= 1:
        answer = _send_group if not rest else _send_resources
        return GroupRoute(handler=partial(answer, watched) if method == "GET" else _send_method_not_allowed)
    return _forwarded(watched, rest)


def _forwarded(watched: WatchedPlugin, rest: list[str]) -> GroupRoute:
    """Forward to the plugin, if it is available and has registered this version."""
    if not rest or rest[0] not in watched.plugin.versions:
        return GroupRoute(handler=_send_not_found)
    if not watched.is_available:
        return GroupRoute(handler=_send_unavailable)
    return GroupRoute(upstream=watched.upstream)


async def _send_group(watched: WatchedPlugin, ctx: RequestContext) -> int:
    if watched.has_conflict:
        return await _send_unavailable(ctx)
    return _send_json(ctx, {"kind": "APIGroup", "apiVersion": "v1", **group_json(watched.group)})


async def _send_resources(watched: WatchedPlugin, ctx: RequestContext) -> int:
    version_name = ctx.plan.info.path.strip("/").split("/")[-1]
    version = next((each for each in watched.group.versions if each.version == version_name), None)
    if version is None:
        return await _send_not_found(ctx)
    if not watched.is_available:
        return await _send_unavailable(ctx)
    return _send_json(ctx, resource_list_json(f"{watched.plugin.group}/{version.version}", version.resources))


def _send_json(ctx: RequestContext, value: dict[str, object]) -> int:
    if ctx.exchange.gone:
        return 0
    lines = b"Audit-Id: %s\r\nCache-Control: no-cache, private\r\nContent-Type: application/json\r\n"
    ctx.exchange.respond_lines(200, lines % ctx.audit_id.encode(), json.dumps(value).encode() + b"\n")
    return 200


async def _send_not_found(ctx: RequestContext) -> int:
    return send_status(ctx, status.no_route())


async def _send_unavailable(ctx: RequestContext) -> int:
    # No Retry-After: kubectl would repeat discovery ten times for each unavailable plugin.
    return send_status(ctx, status.upstream_failed(503))


async def _send_method_not_allowed(ctx: RequestContext) -> int:
    return send_status(ctx, status.method_not_allowed())
