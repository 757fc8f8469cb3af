"""What one user holds of what all share: seats, streams, connections, unread bytes.

Made by `admit.limits`, kept with the user's plans and connections, and changed by the limits and by the connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Protocol

# Gives a place back. To be called once.
Leave = Callable[[], None]


def no_place() -> None:
    """The `Leave` of a request that takes no place."""


class SeatsOfAll(Protocol):
    """The seats, as a share gives one back."""

    in_flight: int

    @property
    def waiters(self) -> Sized: ...

    def serve_waiting(self) -> None: ...


class StreamsOfAll(Protocol):
    """The streams, as a share gives one back."""

    def close(self, share: UserUsage) -> None: ...


class UnreadOfAll(Protocol):
    """The unread bytes, as a share counts its own."""

    def hold(self, share: UserUsage, size: int) -> bool: ...


class UserUsage:
    """The share of one user, for all of their tokens."""

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
        """Gives back what a request of this user takes that is let in without waiting."""
        return no_place if self.exempt else self.leave_seat

    def leave_seat(self) -> None:
        # Written out here: every request does it.
        self.seats -= 1
        seats = self._all_seats
        seats.in_flight -= 1
        if seats.waiters:
            seats.serve_waiting()

    def close_stream(self) -> None:
        self._all_streams.close(self)

    # --- called by the user's connections ---

    def hold_unread(self, size: int) -> bool:
        """A client does not read *size* bytes that we have for it; False if this user has too many of those."""
        return self._all_unread.hold(self, size)

    def release_unread(self, size: int) -> None:
        self._all_unread.hold(self, -size)
