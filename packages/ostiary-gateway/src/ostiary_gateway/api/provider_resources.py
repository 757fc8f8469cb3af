"""Resources that providers serve themselves (`ostiary_gateway.interfaces.resources`), below ``/apis/<group>``."""

from __future__ import annotations

import json
import logging

from ostiary.errors import ProviderError
from ostiary.wire import status
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary_gateway.interfaces.resources import ResourceAnswer, ResourceRequest, ServesResources
from ostiary_gateway.proxy.builtin_endpoints import OwnPathsMapper
from ostiary_gateway.proxy.context import BuiltinApi, RequestContext
from ostiary_gateway.proxy.responses import send_status
from ostiary_gateway.wire.discovery import ListedGroup, ListedResource, ListedVersion, group_json, resource_list_json

log = logging.getLogger("ostiary.gateway")

LARGEST_BODY = 1024 * 1024


class ProviderResources:
    """The resources of one provider. The engine has authorized each request."""

    def __init__(self, provider: ServesResources) -> None:
        self._provider = provider
        served = provider.resource_group
        self._group_version = f"{served.group}/{served.version}"
        self._verbs = {each.name: each.verbs for each in served.resources}
        resources = tuple(
            ListedResource(
                each.name,
                each.kind,
                each.namespaced,
                each.verbs,
                singular=each.singular,
                short_names=each.short_names,
                categories=each.categories,
            )
            for each in served.resources
        )
        self.group = ListedGroup(served.group, (ListedVersion(served.version, resources),))

    @property
    def own_api(self) -> BuiltinApi:
        return BuiltinApi(f"/apis/{self.group.name}", OwnPathsMapper(), self.handle)

    async def handle(self, ctx: RequestContext) -> int:
        info = ctx.plan.info
        if not info.is_resource:
            return self._send_discovery(ctx)
        if f"{info.api_group}/{info.api_version}" != self._group_version or info.resource not in self._verbs:
            return send_status(ctx, status.no_route())
        if info.verb not in self._verbs[info.resource] or info.subresource:
            return send_status(ctx, status.method_not_allowed())
        try:
            answer = await self._provider.serve_resource(await _resource_request(ctx))
            return _send(ctx, answer)
        except ClientGone:
            return 0
        except BodyTooLarge:
            return send_status(ctx, status.too_large())
        except ValueError as error:
            return send_status(ctx, status.bad_request(str(error)))
        except ProviderError as error:
            cause = {"group": self.group.name, "cause": error.cause or error.summary}
            log.error("a provider cannot serve its resources", extra={**cause, "request_id": ctx.audit_id})
            return send_status(ctx, status.upstream_failed(503))

    def _send_discovery(self, ctx: RequestContext) -> int:
        if ctx.plan.info.method not in ("GET", "HEAD"):
            return send_status(ctx, status.method_not_allowed())
        match ctx.plan.info.path.strip("/").split("/"):
            case ["apis", _]:
                return _send(
                    ctx, ResourceAnswer(200, {"kind": "APIGroup", "apiVersion": "v1", **group_json(self.group)})
                )
            case ["apis", _, version] if version == self.group.versions[0].version:
                return _send(
                    ctx,
                    ResourceAnswer(200, resource_list_json(self._group_version, self.group.versions[0].resources)),
                )
        return send_status(ctx, status.no_route())


async def _resource_request(ctx: RequestContext) -> ResourceRequest:
    exchange, plan = ctx.exchange, ctx.plan
    body = await read_body(exchange, LARGEST_BODY) if exchange.request.has_body else b""
    query = exchange.request.target.partition(b"?")[2].decode("latin-1")
    return ResourceRequest(plan.user, plan.info, query, body)


def _send(ctx: RequestContext, answer: ResourceAnswer) -> int:
    if ctx.exchange.gone:
        return 0
    body = json.dumps(answer.value).encode() + b"\n"
    headers = [
        (b"Audit-Id", ctx.audit_id.encode()),
        (b"Cache-Control", b"no-store"),
        (b"Content-Type", b"application/json"),
    ]
    ctx.exchange.respond(answer.status, headers, body)
    return answer.status
