"""Keeps one user from using up what all share: requests a second, requests at once, streams, unread answers.

    rate (a bucket per user)  ->  a seat, at once or after waiting in turn  ->  the request  ->  the seat is free again

Called by the engine around every request. Rates and failed attempts are counted by all workers of a machine together
(`core.rates`), seats and streams by each. Each user has a `UserShare`, which counts what they hold. A user who holds
their whole share waits in a queue of their own while others are served; the queues are served in turn, so with all
seats taken everybody else waits for one request of theirs at most per seat.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated
from weakref import WeakValueDictionary

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config.kinds import Integer, NameSet, Rate, Seconds
from ostiary.core.counting.rates import Buckets, FailedAttempts
from ostiary.errors import TooManyRequests
from ostiary.interfaces.shared_counts import ImmediateCounts
from ostiary.model import UserInfo


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """The ``limits`` of the configuration. Zero is no limit, for rates and for what is counted.

    `concurrency_per_user` None: a quarter of `concurrency`, so that no user takes the seats of all others.
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
    failures_per_minute: Annotated[float, Rate("bad tokens from one address", zero=True)] = 60.0
    exempt_users: Annotated[frozenset[str], NameSet("users without limits")] = frozenset()
    exempt_groups: Annotated[
        frozenset[str], NameSet("groups without limits, besides `system:masters`", always=frozenset({"system:masters"}))
    ] = frozenset({"system:masters"})

    @property
    def seats_per_user(self) -> int:
        if self.concurrency_per_user is not None:
            return self.concurrency_per_user
        return max(1, self.concurrency // 4) if self.concurrency else 0


# Gives a place back. To be called once.
Leave = Callable[[], None]


def no_place() -> None:
    """What those leave who take no place."""


class UserShare:
    """What one user holds of what all share. One object for all tokens of the user, as long as any is in use."""

    __slots__ = (
        "__weakref__",
        "_fair_seats",
        "_limits",
        "connections",
        "exempt",
        "most_connections",
        "name",
        "seats",
        "streams",
        "unread",
    )

    def __init__(self, name: str, limits: Limits, *, exempt: bool = False) -> None:
        self.name = name
        self.exempt = exempt
        self._limits = limits
        self._fair_seats = limits.seats
        self.seats = 0
        self.streams = 0
        self.connections = 0
        most = 0 if exempt else limits.settings.connections_per_user
        self.most_connections = most or float("inf")
        self.unread = 0

    def leave_seat(self) -> None:
        # Written out here: every request does it.
        self.seats -= 1
        seats = self._fair_seats
        seats.in_flight -= 1
        if seats.waiters:
            seats.serve_waiting()

    def close_stream(self) -> None:
        self._limits.streams.close(self)

    # --- its connections call these ---

    def hold_unread(self, size: int) -> bool:
        """A client does not read *size* bytes that we have for it; False if this user has too many of those."""
        return self._limits.hold_unread(self, size)

    def release_unread(self, size: int) -> None:
        self._limits.hold_unread(self, -size)


class Limits:
    """Everything together, as the engine uses it::

        leave = limits.try_enter(share) or await limits.wait(share)
        try: ...
        finally: leave()

    Both raise `TooManyRequests`. A long-running request has `open_stream` instead of a seat.
    """

    def __init__(
        self,
        settings: LimitSettings | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        counts: ImmediateCounts | None = None,
    ) -> None:
        self.settings = settings = settings or LimitSettings()
        self.seats = FairSeats(
            settings.concurrency,
            per_user=settings.seats_per_user,
            queue_length=settings.queue_length,
            queued_in_all=settings.queued_in_all,
            wait_seconds=settings.queue_wait,
            clock=clock,
        )
        self.streams = StreamLimit(settings.streams, settings.streams_in_all)
        self.unread = 0
        self.failures = FailedAttempts(settings.failures_per_minute, clock=clock, counts=counts)
        rate, burst = settings.requests_per_second, settings.burst
        self._rate = Buckets(rate, burst, clock=clock, counts=counts, name="requests")
        self._has_rate = settings.requests_per_second > 0
        self._shares: WeakValueDictionary[tuple[str, bool], UserShare] = WeakValueDictionary()

    def share(self, user: UserInfo) -> UserShare:
        """The share that a user's requests count for. To be kept beside the token: nobody else keeps it alive."""
        settings = self.settings
        exempt = user.username in settings.exempt_users or not settings.exempt_groups.isdisjoint(user.groups)
        share = self._shares.get((user.username, exempt))
        if share is None:
            share = self._shares[user.username, exempt] = UserShare(user.username, self, exempt=exempt)
        return share

    def try_enter(self, share: UserShare) -> Leave | None:
        """A seat, if there is one right now; None if the caller must `wait` for it."""
        if share.exempt:
            return no_place
        if self._has_rate:
            self.check_rate(share.name)
        return self.seats.try_enter(share)

    async def wait(self, share: UserShare) -> Leave:
        return await self.seats.wait(share)

    def open_stream(self, share: UserShare) -> Leave:
        if self._has_rate and not share.exempt:
            self.check_rate(share.name)
        return self.streams.open(share)

    def hold_unread(self, share: UserShare, size: int) -> bool:
        """Count bytes that wait for a slow client; False if they are too many. Nobody is exempt from using memory."""
        share.unread += size
        self.unread += size
        settings = self.settings
        return not (
            (settings.unread_per_user and share.unread > settings.unread_per_user)
            or (settings.unread_in_all and self.unread > settings.unread_in_all)
        )

    def check_rate(self, key: str) -> None:
        retry_after = self._rate.take(key)
        if retry_after:
            raise TooManyRequests(
                "too many requests", cause="the user's rate limit is exceeded", retry_after=retry_after
            )


# --- streams ---


class StreamLimit:
    """How many exchanges that take long may be open: of one user, and of all."""

    def __init__(self, per_user: int, in_all: int = 0) -> None:
        self._per_user, self._in_all = per_user, in_all
        self.open_in_all = 0

    def try_open(self, share: UserShare) -> Leave | None:
        """A place, if one is free."""
        if not share.exempt and (self._used_up(share) or self._full):
            return None
        share.streams += 1
        self.open_in_all += 1
        return share.close_stream

    def open(self, share: UserShare) -> Leave:
        leave = self.try_open(share)
        if leave is None:
            cause = "too many streams of all users are open"
            if self._used_up(share):
                cause = f"the user has {share.streams} watches, logs, terminals or other streams open"
            raise TooManyRequests("too many open streams", cause=cause, retry_after=1.0)
        return leave

    def close(self, share: UserShare) -> None:
        share.streams -= 1
        self.open_in_all -= 1

    def _used_up(self, share: UserShare) -> bool:
        return bool(self._per_user) and share.streams >= self._per_user

    @property
    def _full(self) -> bool:
        return bool(self._in_all) and self.open_in_all >= self._in_all


# --- seats ---


class _Waiter:
    __slots__ = ("deadline", "share", "turn")

    def __init__(self, share: UserShare, turn: asyncio.Future[Leave], deadline: float) -> None:
        self.share, self.turn, self.deadline = share, turn, deadline


class FairSeats:
    """So many requests at once, and so many of one user. Whoever finds no seat waits in a queue of their own.

    The queues are served in turn. A user who holds their share is passed over: while a seat is free, nobody waits but
    such users.
    """

    def __init__(
        self,
        seats: int,
        *,
        per_user: int = 0,
        queue_length: int = 50,
        queued_in_all: int = 1000,
        wait_seconds: float = 15.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._seats = seats or 2**62
        self._per_user = per_user or 2**62
        self._queue_length, self._queued_in_all, self._wait_seconds = queue_length, queued_in_all, wait_seconds
        self._clock = clock
        # In the order of their turns: who has been served goes to the end.
        self._queues: dict[UserShare, deque[_Waiter]] = {}
        # All who wait, the longest first: everybody may wait equally long, so this is also the order of deadlines.
        self.waiters: dict[_Waiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.in_flight = 0

    @property
    def queued(self) -> int:
        return len(self.waiters)

    def try_enter(self, share: UserShare) -> Leave | None:
        # Whoever waits although a seat is free holds their whole share, so nobody is overtaken.
        if self.in_flight >= self._seats or share.seats >= self._per_user:
            return None
        self.in_flight += 1
        share.seats += 1
        return share.leave_seat

    async def wait(self, share: UserShare) -> Leave:
        """A seat, when it is this user's turn; raises `TooManyRequests` if that would take, or takes, too long."""
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
        """Send away all who have waited too long. A timer calls it while anybody waits."""
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
        """A seat was left: give it to whoever's turn it is."""
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
        """Whoever waited has gone. They may have been given a seat in the same moment; then it is free again."""
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
