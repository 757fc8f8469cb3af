"""Per-user usage of the shared limits: concurrent requests, streams, connections, buffered bytes."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Protocol

# Releases a permit. Must be called once.
Leave = Callable[[], None]


def no_place() -> None:
    """The `Leave` of a request without a permit."""


class SeatsOfAll(Protocol):
    """The concurrency limit, as used to release a permit."""

    in_flight: int

    @property
    def waiters(self) -> Sized: ...

    def serve_waiting(self) -> None: ...


class StreamsOfAll(Protocol):
    """The stream limit, as used to close a stream."""

    def close(self, share: UserUsage) -> None: ...


class UnreadOfAll(Protocol):
    """The limit of buffered bytes."""

    def hold(self, share: UserUsage, size: int) -> bool: ...


class UserUsage:
    """The usage of one user, for all of their tokens."""

    __slots__ = (
        "__weakref__",
        "_all_seats",
        "_all_streams",
        "_all_unread",
        "connections",
        "exempt",
        "most_connections",
        "name",
        "seats",
        "streams",
        "unread",
    )

    def __init__(
        self,
        name: str,
        *,
        seats: SeatsOfAll,
        streams: StreamsOfAll,
        unread: UnreadOfAll,
        most_connections: int,
        exempt: bool,
    ) -> None:
        self.name = name
        self.exempt = exempt
        self._all_seats, self._all_streams, self._all_unread = seats, streams, unread
        self.seats = 0
        self.streams = 0
        self.connections = 0
        self.unread = 0
        self.most_connections = most_connections or float("inf")

    @property
    def leave(self) -> Leave:
        """Releases the permit of a request that was let in without waiting."""
        return no_place if self.exempt else self.leave_seat

    def leave_seat(self) -> None:
        # Inlined: this runs for every request.
        self.seats -= 1
        seats = self._all_seats
        seats.in_flight -= 1
        if seats.waiters:
            seats.serve_waiting()

    def close_stream(self) -> None:
        self._all_streams.close(self)

    # --- called by the user's connections ---

    def hold_unread(self, size: int) -> bool:
        """Add *size* bytes buffered for a client that does not read. Return False if the user exceeds the limit."""
        return self._all_unread.hold(self, size)

    def release_unread(self, size: int) -> None:
        self._all_unread.hold(self, -size)
