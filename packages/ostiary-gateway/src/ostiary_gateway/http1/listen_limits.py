"""The settings ``listen.limits`` and ``listen.timeouts``: limits on what clients send, and on how long they take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from ostiary_gateway.settings.kinds import Duration, Integer


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """Limits on what a client may send."""

    header_bytes: Annotated[int, Integer("all headers of one request", least=1024, unit="bytes")] = 64 * 1024
    headers: Annotated[int, Integer("headers of one request", least=10)] = 100
    body_bytes: Annotated[int | None, Integer("the body of one request", unit="bytes", unset="no limit")] = None
    connections: Annotated[int, Integer("connections at a time, per worker")] = 10_000
    body_rate: Annotated[
        int,
        Integer(
            "at which a body must come, on average, once `timeouts.body` has passed. While the gateway does not read,"
            " because the upstream does not, no time passes. `0`: any rate",
            least=0,
            unit="bytes a second",
        ),
    ] = 500


@dataclass(frozen=True, slots=True)
class ListenTimeouts:
    """Limits on how long a client may take."""

    header: Annotated[timedelta, Duration("until all headers have come")] = timedelta(seconds=10)
    body: Annotated[timedelta, Duration("between two pieces of a body; then 408")] = timedelta(seconds=60)
    upload: Annotated[timedelta, Duration("for a whole body, however quickly it comes; `0s`: any time", zero=True)] = (
        timedelta(hours=1)
    )
    idle: Annotated[timedelta, Duration("between two requests of a connection")] = timedelta(seconds=120)
