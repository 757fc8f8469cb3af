"""Requests that the gateway serves itself: built-in APIs, and unauthenticated routes.

The handlers are passed to the engine. This module counts and records their requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from ostiary.model import RequestInfo
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.proxy.context import Handler, RequestContext, UnauthenticatedRoute
from ostiary_gateway.proxy.head_cache import HeadCache
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.request_tasks import RequestTasks
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.proxy.revalidation import RecheckAfterWait
from ostiary_gateway.wire.request_info import request_info

# Maximum body of a request that the gateway serves itself. Each kind of request has a lower limit.
LARGEST_OWN_BODY = 1024 * 1024


class OpenPaths:
    """Routes that require no token: /auth, and the webhooks, which authenticate their callers otherwise."""

    def __init__(
        self,
        paths: Mapping[bytes, UnauthenticatedRoute],
        heads: HeadCache,
        tasks: RequestTasks,
        records: RequestLog,
    ) -> None:
        self._paths = paths
        self._prefixes = tuple(paths)
        self._heads = heads
        self._tasks = tasks
        self._records = records

    def find(self, target: bytes) -> UnauthenticatedRoute | None:
        return self._paths.get(first_segment(target)) if target.startswith(self._prefixes) else None

    def begin_with(self, above: str) -> bool:
        """Whether one of the routes begins with *above*."""
        return any(path.startswith(above.encode("ascii")) for path in self._prefixes)

    def serve(self, path: UnauthenticatedRoute, ctx: RequestContext) -> None:
        waiting = path.handler(ctx, lambda code: self._conclude(path, ctx, code))
        if waiting is not None:
            self._tasks.start_for(ctx, _wait_for(waiting))

    def _conclude(self, path: UnauthenticatedRoute, ctx: RequestContext, code: int) -> None:
        if code >= 400 and not path.records_refusals:
            reason = f"the gateway answered {code} at a path that needs no token"
            self._records.record_unidentified(ctx, code, reason)
            self._records.record_refusal(ctx, code, reason, None)
        if path.repeats and code == 200:
            self._heads.remember_open_path(ctx, path)
        self._records.count(ctx, code)


class OwnApis:
    """Built-in APIs, which are authorized like any other request."""

    def __init__(self, recheck: RecheckAfterWait, answers: Responses, records: RequestLog) -> None:
        self._recheck = recheck
        self._answers = answers
        self._records = records

    async def serve(self, handler: Handler, ctx: RequestContext) -> None:
        request = ctx.exchange.request
        if request.has_body and not ctx.exchange.body_complete and not await self._read_body(ctx):
            return
        code = 500
        try:
            code = await handler(ctx)
        finally:
            self._records.conclude(ctx, code)
        if code >= 400:
            self._records.record_refusal(ctx, code, "refused by the gateway's own API", ctx.plan)

    async def _read_body(self, ctx: RequestContext) -> bool:
        """Read the body. Return False if the request ended or lost its authorization while waiting."""
        exchange = ctx.exchange
        try:
            body = await read_body(exchange, LARGEST_OWN_BODY)
        except ClientGone:
            self._records.conclude(ctx, 0)
            return False
        except BodyTooLarge:
            ctx.release()
            self._answers.send_too_large(ctx)
            return False
        exchange.return_body(body)
        return await self._recheck.is_still_allowed(ctx)


async def _wait_for(waiting: Awaitable[None]) -> None:
    await waiting


def first_segment(target: bytes) -> bytes:
    """Return the first path segment in the form of the route keys, such as ``/auth``."""
    end = target.find(b"/", 1)
    segment = target if end < 0 else target[:end]
    return segment.partition(b"?")[0]


class OwnPathsMapper:
    """Maps requests for built-in endpoints, whose paths have the form of Kubernetes paths.

    Implements `ostiary_gateway.interfaces.attributes.AttributesMapper`.
    """

    def request_info(self, line: RequestLine) -> RequestInfo:
        return request_info(line)

    def long_running(self, info: RequestInfo) -> bool:
        return False
