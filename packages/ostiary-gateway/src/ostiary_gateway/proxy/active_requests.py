"""The in-flight requests between clients and upstreams.

A request holds a concurrency permit, or counts as a stream if it is known to be long-running: a watch, a terminal, a
protocol switch. A request that takes longer than `limits.streamAfter`, or whose response is an event stream, releases
its permit and counts as a stream from then on. If the user has no stream left, it keeps the permit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.proxied_request import ProxiedRequest

OpenExchange = ProxiedRequest[RequestContext]


class ActiveRequests:
    """The in-flight requests of one engine. The forwarder changes the dictionaries directly, for speed."""

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
        """Count long-running requests as streams."""
        began_before = now - self._limits.settings.stream_after
        for proxied in [each for each in self.seated if each.context.received_at <= began_before]:
            self.become_stream(proxied)

    def become_stream(self, proxied: OpenExchange) -> bool:
        """Release the permit and count as a stream. Return False without a change if the user has too many streams."""
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
