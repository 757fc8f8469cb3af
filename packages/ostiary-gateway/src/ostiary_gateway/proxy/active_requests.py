"""The exchanges between clients and upstreams that have not ended yet.

Kept by the engine; the forwarder adds and removes them. An exchange begins in a seat, or as a stream if it is known to
take long: a watch, a terminal, whatever switches protocols. One that goes on for longer than `limits.streamAfter`, or
whose answer turns out to be a stream of events, leaves its seat to others and counts as one of its user's streams from
then on. Where the user has no stream left, it keeps its seat, which is one of the user's share.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.proxied_request import ProxiedRequest

OpenExchange = ProxiedRequest[RequestContext]


class ActiveRequests:
    """Those of one engine. The forwarder changes the two dictionaries itself: it does so for every request."""

    __slots__ = ("_limits", "seated", "streams")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.seated: dict[OpenExchange, None] = {}
        self.streams: dict[OpenExchange, None] = {}

    def __len__(self) -> int:
        return len(self.seated) + len(self.streams)

    def __iter__(self) -> Iterator[OpenExchange]:
        return chain(self.seated, self.streams)

    def __contains__(self, proxied: object) -> bool:
        return proxied in self.seated or proxied in self.streams

    def tick(self, now: float) -> None:
        """What has gone on for long counts as a stream."""
        began_before = now - self._limits.settings.stream_after
        for proxied in [each for each in self.seated if each.context.received_at <= began_before]:
            self.become_stream(proxied)

    def become_stream(self, proxied: OpenExchange) -> bool:
        """Leave the seat and count as a stream; False, and nothing changes, if the user has too many."""
        if proxied not in self.seated:
            return True
        ctx = proxied.context
        leave = self._limits.streams.try_open(ctx.plan.share)
        if leave is None:
            return False
        ctx.release()
        ctx.leave = leave
        del self.seated[proxied]
        self.streams[proxied] = None
        return True
