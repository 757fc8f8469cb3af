"""The ``limits`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary_gateway.settings.kinds import Integer, NameSet, Rate, Seconds


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """The ``limits`` section of the configuration. Zero means no limit, for rates and counts.

    If `concurrency_per_user` is None, it is a quarter of `concurrency`, so that one user cannot take all permits.
    """

    requests_per_second: Annotated[float, Rate("requests of one user, on average", zero=True)] = 0.0
    burst: Annotated[int, Integer("requests of one user at once")] = 100
    concurrency: Annotated[
        int, Integer("requests at a time; more wait in a queue per user, and the queues take turns", least=0)
    ] = 400
    concurrency_per_user: Annotated[
        int | None,
        Integer(
            "requests of one user at a time; more of them wait in the user's queue, while others are served",
            least=0,
            unset="a quarter of `concurrency`",
        ),
    ] = None
    queue_length: Annotated[int, Integer("waiting requests of one user", least=0)] = 50
    queued_in_all: Annotated[int, Integer("waiting requests of all users", least=0)] = 1000
    queue_wait: Annotated[float, Seconds("how long a request waits; then 429", zero=True)] = 15.0
    streams: Annotated[
        int,
        Integer(
            "open streams of one user: watches, followed logs, terminals, everything that switches protocols"
            " (WebSocket, SPDY), server-sent events; one more gets 429",
            least=0,
        ),
    ] = 200
    streams_in_all: Annotated[int, Integer("open streams of all users", least=0)] = 10_000
    stream_after: Annotated[
        float,
        Seconds(
            "a request that goes on for longer counts as a stream: it leaves its place among `concurrency` to others."
            " If the user has no stream left, it keeps that place"
        ),
    ] = 5.0
    connections_per_user: Annotated[
        int,
        Integer("open connections whose last request was this user's; one more gets 429 and is closed", least=0),
    ] = 1000
    unread_per_user: Annotated[
        int,
        Integer(
            "held for the clients (or upstreams) of one user that do not read; a connection that exceeds this is cut",
            least=0,
            unit="bytes",
        ),
    ] = 16 * 1024 * 1024
    unread_in_all: Annotated[int, Integer("the same for all users", least=0, unit="bytes")] = 128 * 1024 * 1024
    failures_per_minute: Annotated[
        float, Rate("invalid tokens from one address; half of it for one token", zero=True)
    ] = 60.0
    exempt_users: Annotated[frozenset[str], NameSet("users without limits")] = frozenset()
    exempt_groups: Annotated[
        frozenset[str], NameSet("groups without limits, besides `system:masters`", always=frozenset({"system:masters"}))
    ] = frozenset({"system:masters"})

    @property
    def seats_per_user(self) -> int:
        if self.concurrency_per_user is not None:
            return self.concurrency_per_user
        return max(1, self.concurrency // 4) if self.concurrency else 0
