"""Which requests go to an API plugin, and which documents are merged.

    /apis, /openapi/v2, /openapi/v3               merged                      `merging`
    /apis/<group>, /apis/<group>/<version>        what the plugin has said    answered here
    /apis/<group>/<version>/...                   forwarded to the plugin, after the same steps as any request
    /openapi/v3/apis/<group>/<version>            forwarded to it

Asked by `request.questions` for each new request to a Kubernetes upstream. The group is read from the same text that
the mapper reads it from, so what is decided on and who serves it cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from ostiary.gateway.doors.api_plugins.merging import Merging
from ostiary.gateway.request.own.send_status import send_status
from ostiary.gateway.request.stages import GroupRoute, Passage
from ostiary.gateway.upstream.api_plugins.registry import ApiPlugins
from ostiary.gateway.upstream.api_plugins.watching import WatchedPlugin
from ostiary.gateway.upstream.upstreams import Upstream
from ostiary.wire import status
from ostiary.wire.discovery.groups import ListedGroup, group_json
from ostiary.wire.discovery.resources import resource_list_json


class GroupRoutes:
    """Implements `ostiary.gateway.request.stages.ApiGroups`. *own* are groups that providers serve."""

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
    """To the plugin, if it is there and has registered this version."""
    if not rest or rest[0] not in watched.plugin.versions:
        return GroupRoute(handler=_send_not_found)
    if not watched.is_available:
        return GroupRoute(handler=_send_unavailable)
    return GroupRoute(upstream=watched.upstream)


async def _send_group(watched: WatchedPlugin, passage: Passage) -> int:
    if watched.has_conflict:
        return await _send_unavailable(passage)
    return _send_json(passage, {"kind": "APIGroup", "apiVersion": "v1", **group_json(watched.group)})


async def _send_resources(watched: WatchedPlugin, passage: Passage) -> int:
    version_name = passage.plan.info.path.strip("/").split("/")[-1]
    version = next((each for each in watched.group.versions if each.version == version_name), None)
    if version is None:
        return await _send_not_found(passage)
    if not watched.is_available:
        return await _send_unavailable(passage)
    return _send_json(passage, resource_list_json(f"{watched.plugin.group}/{version.version}", version.resources))


def _send_json(passage: Passage, value: dict[str, object]) -> int:
    if passage.exchange.gone:
        return 0
    lines = b"Audit-Id: %s\r\nCache-Control: no-cache, private\r\nContent-Type: application/json\r\n"
    passage.exchange.respond_lines(200, lines % passage.audit_id.encode(), json.dumps(value).encode() + b"\n")
    return 200


async def _send_not_found(passage: Passage) -> int:
    return send_status(passage, status.no_route())


async def _send_unavailable(passage: Passage) -> int:
    # No Retry-After: kubectl would repeat discovery ten times for each plugin that is not well.
    return send_status(passage, status.upstream_failed(503))


async def _send_method_not_allowed(passage: Passage) -> int:
    return send_status(passage, status.method_not_allowed())
