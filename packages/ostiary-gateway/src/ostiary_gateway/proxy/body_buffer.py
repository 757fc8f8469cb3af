"""Reads the body of a request that must be looked into before it is forwarded. It goes on exactly as it came.

Called by `object_admission` and `capabilities`. The bytes are counted with the others that the user makes us keep,
until the caller is done with them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ostiary.errors import TooManyRequests
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.responses import Responses


class BodyBuffer:
    """For the requests of one engine."""

    def __init__(self, answers: Responses) -> None:
        self._answers = answers

    async def read(self, ctx: RequestContext, limit: int) -> bytes | None:
        """The body, to be given to `release`. None if there is none to go on with: the client is answered then."""
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
        """The caller has looked at *body*; it is forwarded, or not."""
        ctx.plan.share.release_unread(len(body))


def sent_headers(ctx: RequestContext, *names: bytes) -> Iterator[tuple[str, str]]:
    """The headers with these *names*, which are in small letters.

    Of the lines that go on to the upstream: a head that came before has nothing else.
    """
    for line in ctx.scanned.lines.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() in names:
            yield name.decode("latin-1"), value.strip().decode("latin-1")
