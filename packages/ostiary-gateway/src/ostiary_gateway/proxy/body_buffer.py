"""Read the body of a request that must be inspected before it is forwarded. It is forwarded unchanged."""

from __future__ import annotations

from collections.abc import Iterator

from ostiary.errors import TooManyRequests
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.responses import Responses


class BodyBuffer:
    """Buffers bodies for one engine. They count as buffered bytes of the user until the caller calls `release`."""

    def __init__(self, answers: Responses) -> None:
        self._answers = answers

    async def read(self, ctx: RequestContext, limit: int) -> bytes | None:
        """Return the body, for which `release` must be called; None if the request has ended."""
        exchange, share = ctx.exchange, ctx.plan.share
        try:
            body = await read_body(exchange, limit)
        except BodyTooLarge:
            ctx.release()
            self._answers.send_too_large(ctx)
            return None
        except ClientGone:
            ctx.release()
            return None
        exchange.return_body(body)
        if share.hold_unread(len(body)):
            return body
        share.release_unread(len(body))
        ctx.release()
        error = TooManyRequests("too many bodies of this user wait", retry_after=1.0)
        self._answers.send_too_many(ctx, error, "unread", ctx.plan)
        return None

    def release(self, ctx: RequestContext, body: bytes) -> None:
        """Release *body* after it was inspected."""
        ctx.plan.share.release_unread(len(body))


def sent_headers(ctx: RequestContext, *names: bytes) -> Iterator[tuple[str, str]]:
    """Yield the headers with these *names*, which are lower-case.

    Only headers that are forwarded: a cached head has no others.
    """
    for line in ctx.scanned.lines.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() in names:
            yield name.decode("latin-1"), value.strip().decode("latin-1")
