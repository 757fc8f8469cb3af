"""The limits of a worker, which keep one user from exhausting shared resources.

    rate (token bucket per user)  ->  permit, immediately or after queuing  ->  request  ->  permit released

All workers of a machine count rates and failed attempts together, and replicas do so approximately
(`replicated_counts`). Concurrency and streams are counted per worker, in a `UserUsage` per user.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import TooManyRequests
from ostiary.model import UserInfo
from ostiary_gateway.http1.exchange import ClientConnection
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts
from ostiary_gateway.limits.rates import Buckets, FailedAttempts
from ostiary_gateway.limits.settings import LimitSettings
from ostiary_gateway.limits.user_usage import Leave, UserUsage, no_place


class _Waiter:
    __slots__ = ("deadline", "share", "turn")

    def __init__(self, share: UserUsage, turn: asyncio.Future[Leave], deadline: float) -> None:
        self.share, self.turn, self.deadline = share, turn, deadline


class FairSemaphore:
    """Limits concurrent requests, in total and per user. Each user has a queue.

    The queues are served round robin. A user at their limit is skipped: while a permit is free, only such users wait.
    When all permits are taken, other users wait for at most one request of a greedy user per permit.
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
        # In the order of service: a user who was served moves to the end.
        self._queues: dict[UserUsage, deque[_Waiter]] = {}
        # All waiting requests, oldest first. Their timeout is the same, so this is also the order of deadlines.
        self.waiters: dict[_Waiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.in_flight = 0

    @property
    def queued(self) -> int:
        return len(self.waiters)

    def try_enter(self, share: UserUsage) -> Leave | None:
        """Return a permit, or None if none is free now."""
        # A user who waits although a permit is free is at their limit, so no user is overtaken.
        if self.in_flight >= self._seats or share.seats >= self._per_user:
            return None
        self.in_flight += 1
        share.seats += 1
        return share.leave_seat

    def is_free_for(self, share: UserUsage) -> bool:
        """Whether `try_enter` would return a permit."""
        return self.in_flight < self._seats and share.seats < self._per_user

    async def wait(self, share: UserUsage) -> Leave:
        """Wait for a permit; raises `TooManyRequests` if the queue is full or the wait takes too long."""
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
        """Reject all requests that have waited too long. Called by a timer while requests wait."""
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

    def _enqueue(self, share: UserUsage) -> _Waiter:
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
        """Pass a released permit to the user whose turn it is."""
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

    def _to_the_end(self, share: UserUsage) -> None:
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
        """Remove a waiter whose client is gone, and release a permit that it was given at the same time."""
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


class StreamLimit:
    """Limits open streams, per user and in total: watches, logs, terminals, and other long-running requests."""

    def __init__(self, per_user: int, in_all: int) -> None:
        self._per_user, self._in_all = per_user, in_all
        self.open_in_all = 0

    def try_open(self, share: UserUsage) -> Leave | None:
        """Open a stream, or return None if the limit is reached."""
        if not share.exempt and (self._has_most(share) or self._is_full):
            return None
        share.streams += 1
        self.open_in_all += 1
        return share.close_stream

    def open(self, share: UserUsage) -> Leave:
        """Open a stream; raises `TooManyRequests` if the limit is reached."""
        leave = self.try_open(share)
        if leave is None:
            cause = "too many streams of all users are open"
            if self._has_most(share):
                cause = f"the user has {share.streams} watches, logs, terminals or other streams open"
            raise TooManyRequests("too many open streams", cause=cause, retry_after=1.0)
        return leave

    def close(self, share: UserUsage) -> None:
        share.streams -= 1
        self.open_in_all -= 1

    def _has_most(self, share: UserUsage) -> bool:
        return bool(self._per_user) and share.streams >= self._per_user

    @property
    def _is_full(self) -> bool:
        return bool(self._in_all) and self.open_in_all >= self._in_all


class UnreadLimit:
    """Limits the bytes that are buffered for slow clients and upstreams, per user and in total. No user is exempt."""

    def __init__(self, per_user: int, in_all: int) -> None:
        self._per_user, self._in_all = per_user, in_all
        self.held_in_all = 0

    def hold(self, share: UserUsage, size: int) -> bool:
        """Add *size* bytes, which may be negative. Return False if the limit is exceeded."""
        share.unread += size
        self.held_in_all += size
        return not (
            (self._per_user and share.unread > self._per_user) or (self._in_all and self.held_in_all > self._in_all)
        )


# Concurrent lookups for addresses with too many invalid tokens. One per connection, so connections take turns.
SUSPECT_LOOKUPS = 8


class Limits:
    """The limits, as used by the engine::

        leave = limits.try_enter(share) or await limits.wait(share)
        try: ...
        finally: leave()

    Both raise `TooManyRequests`. A long-running request uses `open_stream` instead.
    """

    def __init__(
        self,
        settings: LimitSettings | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        counts: ImmediateCounts | None = None,
    ) -> None:
        self.settings = settings = settings or LimitSettings()
        self.seats = FairSemaphore(
            settings.concurrency,
            per_user=settings.seats_per_user,
            queue_length=settings.queue_length,
            queued_in_all=settings.queued_in_all,
            wait_seconds=settings.queue_wait,
            clock=clock,
        )
        self.streams = StreamLimit(settings.streams, settings.streams_in_all)
        self.failures = FailedAttempts(settings.failures_per_minute, clock=clock, counts=counts)
        self._suspect_lookups = asyncio.Semaphore(SUSPECT_LOOKUPS)
        self._unread = UnreadLimit(settings.unread_per_user, settings.unread_in_all)
        rate, burst = settings.requests_per_second, settings.burst
        self._rate = Buckets(rate, burst, clock=clock, counts=counts, name="requests")
        self._has_rate = rate > 0
        self._shares: WeakValueDictionary[tuple[str, bool], UserUsage] = WeakValueDictionary()

    @asynccontextmanager
    async def lookup(self, address: str) -> AsyncIterator[None]:
        """Hold this while a token that is not cached is looked up for a client at *address*.

        Addresses with too many invalid tokens share a few concurrent lookups: a valid token from there waits, but is
        not rejected.
        """
        if self.failures.seconds_blocked(address):
            async with self._suspect_lookups:
                yield
        else:
            yield

    @property
    def unread(self) -> int:
        """The number of bytes buffered for clients and upstreams that do not read them."""
        return self._unread.held_in_all

    def share(self, user: UserInfo) -> UserUsage:
        """Return the usage of a user. It lives as long as a plan, a request or a connection refers to it."""
        settings = self.settings
        exempt = user.username in settings.exempt_users or not settings.exempt_groups.isdisjoint(user.groups)
        share = self._shares.get((user.username, exempt))
        if share is None:
            share = self._shares[user.username, exempt] = UserUsage(
                user.username,
                seats=self.seats,
                streams=self.streams,
                unread=self._unread,
                most_connections=0 if exempt else settings.connections_per_user,
                exempt=exempt,
            )
        return share

    def try_enter(self, share: UserUsage) -> Leave | None:
        """Count a request and return a permit; None if the caller must `wait` for it."""
        if share.exempt:
            return no_place
        if self._has_rate:
            self.check_rate(share.name)
        return self.seats.try_enter(share)

    def pass_through(self, share: UserUsage) -> bool:
        """Count a request that ends immediately and needs no permit.

        Return False if it must use `try_enter` instead; then nothing was counted.
        """
        if share.exempt:
            return True
        # Check the rate last, because it consumes a token.
        return self.seats.is_free_for(share) and not (self._has_rate and self._rate.take(share.name))

    def take_seat(self, share: UserUsage) -> bool:
        """Count a request and take a permit, which `UserUsage.leave` releases.

        Return False if it must use `try_enter` instead; then nothing was counted.
        """
        if share.exempt:
            return True
        seats = self.seats
        if not seats.is_free_for(share) or (self._has_rate and self._rate.take(share.name)):
            return False
        seats.in_flight += 1
        share.seats += 1
        return True

    async def wait(self, share: UserUsage) -> Leave:
        return await self.seats.wait(share)

    def open_stream(self, share: UserUsage) -> Leave:
        if self._has_rate and not share.exempt:
            self.check_rate(share.name)
        return self.streams.open(share)

    def check_rate(self, key: str) -> None:
        retry_after = self._rate.take(key)
        if retry_after:
            raise TooManyRequests(
                "too many requests", cause="the user's rate limit is exceeded", retry_after=retry_after
            )


def charge_connection(connection: ClientConnection, share: UserUsage) -> bool:
    """Charge *connection* to *share* instead of its previous user.

    Return False if the user has too many connections.
    """
    account = connection.account
    if account is None:
        connection.charge(share)
    else:
        # Inlined: runs for every request on a connection that many users share.
        account.connections -= 1
        share.connections += 1
        connection.account = share
    return share.connections <= share.most_connections
