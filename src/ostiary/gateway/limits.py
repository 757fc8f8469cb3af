"""Keeps one caller from using up what all share: requests a second, requests at once, streams, failed attempts.

    rate (a bucket per user)  ->  a seat, at once or after waiting in turn  ->  the request  ->  the seat is free again

Called by the proxy around every request. All of it is about one worker. A user who floods waits in a queue of their
own, and the queues are served in turn, so everybody else waits for one request of theirs at most per seat.
`None` as a key stands for somebody who is exempt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address, ip_address

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import TooManyRequests
from ostiary.model import UserInfo

TABLE_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """The ``limits`` of the configuration. A rate, a concurrency or a number of streams of zero is no limit."""

    requests_per_second: float = 0.0
    burst: int = 100
    concurrency: int = 400
    queue_length: int = 50
    queued_in_all: int = 1000
    queue_wait: float = 15.0
    streams: int = 200
    failures_per_minute: float = 60.0
    exempt_users: frozenset[str] = frozenset()
    exempt_groups: frozenset[str] = frozenset({"system:masters"})


# Gives a place back. To be called once.
Leave = Callable[[], None]


def no_place() -> None:
    """What those leave who take no place."""


class Limits:
    """Everything together, as the proxy uses it::

        leave = limits.try_enter(key) or await limits.wait(key)
        try: ...
        finally: leave()

    Both raise `TooManyRequests`. A long-running request has `open_stream` instead of a seat.
    """

    def __init__(self, settings: LimitSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings = settings or LimitSettings()
        self.seats = FairSeats(
            settings.concurrency,
            queue_length=settings.queue_length,
            queued_in_all=settings.queued_in_all,
            wait_seconds=settings.queue_wait,
            clock=clock,
        )
        self.streams = StreamLimit(settings.streams)
        self.failures = FailedAttempts(settings.failures_per_minute, clock=clock)
        self._rate = Buckets(settings.requests_per_second, settings.burst, clock=clock)
        self._has_rate = settings.requests_per_second > 0

    def key(self, user: UserInfo) -> str | None:
        """Whose share a user's requests count for; None if no limit applies. To be kept beside the token."""
        settings = self.settings
        if user.username in settings.exempt_users or not settings.exempt_groups.isdisjoint(user.groups):
            return None
        return user.username

    def try_enter(self, key: str | None) -> Leave | None:
        """A seat, if there is one right now; None if the caller must `wait` for it."""
        if key is None:
            return no_place
        if self._has_rate:
            self.check_rate(key)
        return self.seats.try_enter()

    async def wait(self, key: str) -> Leave:
        return await self.seats.wait(key)

    def open_stream(self, key: str | None) -> Leave:
        if key is None:
            return self.streams.open(None)
        if self._has_rate:
            self.check_rate(key)
        return self.streams.open(key)

    def check_rate(self, key: str) -> None:
        retry_after = self._rate.take(key)
        if retry_after:
            raise TooManyRequests(
                "too many requests", cause="the user's requests per second are used up", retry_after=retry_after
            )


# --- rate ---


class Buckets:
    """A bucket of tokens per key: *burst* at once, then *rate* a second. Holds a bounded number of keys."""

    def __init__(self, rate: float, burst: float, *, clock: Clock = SYSTEM_CLOCK, limit: int = TABLE_LIMIT) -> None:
        self._rate, self._burst = rate, float(max(burst, 1))
        self._clock, self._limit = clock, limit
        self._table: dict[str, list[float]] = {}

    def take(self, key: str) -> float:
        """Take a token and return zero; or how many seconds it takes until there is one."""
        now = self._clock.monotonic()
        bucket = self._table.get(key)
        if bucket is None:
            self._add(key, [self._burst - 1, now])
            return 0.0
        tokens = bucket[0] + (now - bucket[1]) * self._rate
        if tokens > self._burst:
            tokens = self._burst
        bucket[1] = now
        if tokens >= 1:
            bucket[0] = tokens - 1
            return 0.0
        bucket[0] = tokens
        return (1 - tokens) / self._rate

    def empty_for(self, key: str) -> float:
        """As `take`, without taking any."""
        bucket = self._table.get(key)
        if bucket is None:
            return 0.0
        tokens = bucket[0] + (self._clock.monotonic() - bucket[1]) * self._rate
        return 0.0 if tokens >= 1 else (1 - tokens) / self._rate

    def __len__(self) -> int:
        return len(self._table)

    def _add(self, key: str, bucket: list[float]) -> None:
        if len(self._table) >= self._limit:
            self._make_room(bucket[1])
        self._table[key] = bucket

    def _make_room(self, now: float) -> None:
        # A bucket that is full again is the same as none. If too many are not, the oldest are forgiven: a
        # quarter at once, so that a flood of new keys does not make every one of them search the table.
        kept = {
            key: bucket
            for key, bucket in self._table.items()
            if bucket[0] + (now - bucket[1]) * self._rate < self._burst
        }
        if len(kept) > self._limit * 3 // 4:
            kept = dict(list(kept.items())[-(self._limit * 3 // 4) :])
        self._table = kept


class FailedAttempts:
    """Counts failed authentications by where they come from.

    Call `check` before the token store is asked about an unknown token, and not for a token that is known to
    this worker: people behind one address must not lock each other out.
    """

    def __init__(self, per_minute: float, *, clock: Clock = SYSTEM_CLOCK, limit: int = TABLE_LIMIT) -> None:
        self._enabled = per_minute > 0
        self._buckets = Buckets(per_minute / 60, per_minute, clock=clock, limit=limit)

    def failed(self, address: str) -> None:
        if self._enabled:
            self._buckets.take(network(address))

    def blocked_for(self, address: str) -> float:
        """How many seconds until this address may try again; zero if it may."""
        return self._buckets.empty_for(network(address)) if self._enabled else 0.0

    def check(self, address: str) -> None:
        retry_after = self.blocked_for(address)
        if retry_after:
            cause = "too many credentials from this address were not valid"
            raise TooManyRequests("too many failed attempts", cause=cause, retry_after=retry_after)

    def __len__(self) -> int:
        return len(self._buckets)


def network(address: str) -> str:
    """An IPv4 address, or the network that one subscriber has all the IPv6 addresses of."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.packed[:8].hex()


# --- streams ---


class StreamLimit:
    """How many long-running requests one user may have open. The table holds only those who have one."""

    def __init__(self, per_user: int) -> None:
        self._per_user = per_user
        self._open: dict[str, int] = {}
        self.open_in_all = 0

    def open(self, key: str | None) -> Leave:
        if key is not None:
            count = self._open.get(key, 0)
            if self._per_user and count >= self._per_user:
                cause = f"the user has {count} watches, logs or terminals open"
                raise TooManyRequests("too many open streams", cause=cause, retry_after=1.0)
            self._open[key] = count + 1
        self.open_in_all += 1
        return partial(self._close, key)

    def _close(self, key: str | None) -> None:
        self.open_in_all -= 1
        if key is None:
            return
        left = self._open[key] - 1
        if left:
            self._open[key] = left
        else:
            del self._open[key]


# --- seats ---


class _Waiter:
    __slots__ = ("deadline", "key", "turn")

    def __init__(self, key: str, turn: asyncio.Future[Leave], deadline: float) -> None:
        self.key, self.turn, self.deadline = key, turn, deadline


class FairSeats:
    """So many requests at once. Who finds no seat waits in a queue of their own; the queues are served in turn."""

    def __init__(
        self,
        seats: int,
        *,
        queue_length: int = 50,
        queued_in_all: int = 1000,
        wait_seconds: float = 15.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._seats = seats or 2**62
        self._queue_length, self._queued_in_all, self._wait_seconds = queue_length, queued_in_all, wait_seconds
        self._clock = clock
        # In the order of their turns: who has been served goes to the end.
        self._queues: dict[str, deque[_Waiter]] = {}
        # All who wait, the longest first: everybody may wait equally long, so this is also the order of deadlines.
        self._waiters: dict[_Waiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.in_flight = 0
        # Bound once: every request asks for it.
        self._leave = self._left

    @property
    def queued(self) -> int:
        return len(self._waiters)

    def try_enter(self) -> Leave | None:
        if self.in_flight >= self._seats or self._waiters:
            return None
        self.in_flight += 1
        return self._leave

    async def wait(self, key: str) -> Leave:
        """A seat, when it is this user's turn; raises `TooManyRequests` if that would take, or takes, too long."""
        leave = self.try_enter()
        if leave is not None:
            return leave
        waiter = self._enqueue(key)
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def expire(self) -> None:
        """Send away all who have waited too long. A timer calls it while anybody waits."""
        now = self._clock.monotonic()
        overdue = []
        for waiter in self._waiters:
            if waiter.deadline > now:
                break
            overdue.append(waiter)
        for waiter in overdue:
            self._remove(waiter)
            if not waiter.turn.done():
                waiter.turn.set_exception(self._refusal("no request before this one was finished in time"))

    def _enqueue(self, key: str) -> _Waiter:
        if len(self._queues.get(key, ())) >= self._queue_length:
            raise self._refusal("too many requests of this user wait already")
        if len(self._waiters) >= self._queued_in_all:
            raise self._refusal("too many requests wait already")
        loop = asyncio.get_running_loop()
        waiter = _Waiter(key, loop.create_future(), self._clock.monotonic() + self._wait_seconds)
        self._queues.setdefault(key, deque()).append(waiter)
        self._waiters[waiter] = None
        if self._timer is None:
            self._timer = loop.call_later(self._wait_seconds, self._on_time)
        return waiter

    def _left(self) -> None:
        self.in_flight -= 1
        while self._queues and self.in_flight < self._seats:
            waiter = next(iter(self._queues.values()))[0]
            self._remove(waiter)
            self._to_the_end(waiter.key)
            if not waiter.turn.done():
                self.in_flight += 1
                waiter.turn.set_result(self._leave)

    def _to_the_end(self, key: str) -> None:
        queue = self._queues.pop(key, None)
        if queue is not None:
            self._queues[key] = queue

    def _remove(self, waiter: _Waiter) -> None:
        self._waiters.pop(waiter, None)
        queue = self._queues.get(waiter.key)
        if queue is None:
            return
        if queue[0] is waiter:
            queue.popleft()
        elif waiter in queue:
            queue.remove(waiter)
        if not queue:
            del self._queues[waiter.key]

    def _give_up(self, waiter: _Waiter) -> None:
        """Whoever waited has gone. They may have been given a seat in the same moment; then it is free again."""
        self._remove(waiter)
        turn = waiter.turn
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            turn.result()()

    def _on_time(self) -> None:
        self._timer = None
        self.expire()
        first = next(iter(self._waiters), None)
        if first is not None:
            delay = max(first.deadline - self._clock.monotonic(), 0.01)
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)

    def _refusal(self, cause: str) -> TooManyRequests:
        return TooManyRequests("too many requests at once", cause=cause, retry_after=1.0)
