"""Seats: how many requests are served at once, and in which order those are served that wait for a seat.

Called by `admit.limits` around every request that is not a stream. With all seats taken, everybody else waits for one
request of a greedy user at most per seat.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ostiary.core.clock import Clock
from ostiary.errors import TooManyRequests
from ostiary.gateway.admit.share import Leave, UserShare


class _Waiter:
    __slots__ = ("deadline", "share", "turn")

    def __init__(self, share: UserShare, turn: asyncio.Future[Leave], deadline: float) -> None:
        self.share, self.turn, self.deadline = share, turn, deadline


class FairSeats:
    """Bounds the requests that are served at once, in all and for one user. Each user has a queue of their own.

    The queues are served in turn. A user who holds their share is passed over: while a seat is free, nobody waits but
    such users.
    """

    def __init__(
        self,
        seats: int,
        *,
        per_user: int,
        queue_length: int,
        queued_in_all: int,
        wait_seconds: float,
        clock: Clock,
    ) -> None:
        self._seats = seats or 2**62
        self._per_user = per_user or 2**62
        self._queue_length, self._queued_in_all, self._wait_seconds = queue_length, queued_in_all, wait_seconds
        self._clock = clock
        # In the order in which they are served: a user who has been served goes to the end.
        self._queues: dict[UserShare, deque[_Waiter]] = {}
        # All that wait, the longest first. All may wait equally long, so this is also the order of deadlines.
        self.waiters: dict[_Waiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.in_flight = 0

    @property
    def queued(self) -> int:
        return len(self.waiters)

    def try_enter(self, share: UserShare) -> Leave | None:
        """A seat, if there is one right now."""
        # A user who waits although a seat is free holds their whole share, so nobody is overtaken.
        if self.in_flight >= self._seats or share.seats >= self._per_user:
            return None
        self.in_flight += 1
        share.seats += 1
        return share.leave_seat

    def is_free_for(self, share: UserShare) -> bool:
        """Whether `try_enter` would give a seat."""
        return self.in_flight < self._seats and share.seats < self._per_user

    async def wait(self, share: UserShare) -> Leave:
        """A seat, when it is this user's turn; raises `TooManyRequests` if the queue is full or the wait too long."""
        leave = self.try_enter(share)
        if leave is not None:
            return leave
        waiter = self._enqueue(share)
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def expire(self) -> None:
        """Refuse all that have waited too long. A timer calls it while any request waits."""
        now = self._clock.monotonic()
        overdue = []
        for waiter in self.waiters:
            if waiter.deadline > now:
                break
            overdue.append(waiter)
        for waiter in overdue:
            self._remove(waiter)
            if not waiter.turn.done():
                waiter.turn.set_exception(self._refusal("the request waited too long in the queue"))

    def _enqueue(self, share: UserShare) -> _Waiter:
        if len(self._queues.get(share, ())) >= self._queue_length:
            raise self._refusal("too many requests of this user are queued")
        if len(self.waiters) >= self._queued_in_all:
            raise self._refusal("too many requests are queued")
        loop = asyncio.get_running_loop()
        waiter = _Waiter(share, loop.create_future(), self._clock.monotonic() + self._wait_seconds)
        self._queues.setdefault(share, deque()).append(waiter)
        self.waiters[waiter] = None
        if self._timer is None:
            self._timer = loop.call_later(self._wait_seconds, self._on_time)
        return waiter

    def serve_waiting(self) -> None:
        """A seat has become free: give it to the user whose turn it is."""
        while self.in_flight < self._seats:
            share = next((share for share in self._queues if share.seats < self._per_user), None)
            if share is None:
                return
            waiter = self._queues[share][0]
            self._remove(waiter)
            self._to_the_end(share)
            if not waiter.turn.done():
                self.in_flight += 1
                share.seats += 1
                waiter.turn.set_result(share.leave_seat)

    def _to_the_end(self, share: UserShare) -> None:
        queue = self._queues.pop(share, None)
        if queue is not None:
            self._queues[share] = queue

    def _remove(self, waiter: _Waiter) -> None:
        self.waiters.pop(waiter, None)
        queue = self._queues.get(waiter.share)
        if queue is None:
            return
        if queue[0] is waiter:
            queue.popleft()
        elif waiter in queue:
            queue.remove(waiter)
        if not queue:
            del self._queues[waiter.share]

    def _give_up(self, waiter: _Waiter) -> None:
        """A client that waited has gone. If it was given a seat in the same moment, that is free again."""
        self._remove(waiter)
        turn = waiter.turn
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            turn.result()()

    def _on_time(self) -> None:
        self._timer = None
        self.expire()
        first = next(iter(self.waiters), None)
        if first is not None:
            delay = max(first.deadline - self._clock.monotonic(), 0.01)
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)

    def _refusal(self, cause: str) -> TooManyRequests:
        return TooManyRequests("too many requests at once", cause=cause, retry_after=1.0)
