"""All limits together: they keep one user from using up what all share.

    rate (a bucket per user)  ->  a seat, at once or after waiting in turn  ->  the request  ->  the seat is free again

Called by the engine around every request. Rates and failed attempts are counted by all workers of a machine together,
and nearly so by all replicas (`core.counting`); seats and streams by each worker. Each user has a `UserShare`, which
counts what they hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.counting.rates import Buckets, FailedAttempts
from ostiary.errors import TooManyRequests
from ostiary.gateway.admit.seats import FairSeats
from ostiary.gateway.admit.share import Leave, UserShare, no_place
from ostiary.gateway.admit.streams import StreamLimit
from ostiary.gateway.admit.unread import UnreadLimit
from ostiary.gateway.config.limit_settings import LimitSettings
from ostiary.interfaces.shared_counts import ImmediateCounts
from ostiary.model import UserInfo

# So many lookups at a time for addresses with too many invalid tokens. A connection has one, so they take turns.
SUSPECT_LOOKUPS = 8


class Limits:
    """As the engine uses them::

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
        self.failures = FailedAttempts(settings.failures_per_minute, clock=clock, counts=counts)
        self._suspect_lookups = asyncio.Semaphore(SUSPECT_LOOKUPS)
        self._unread = UnreadLimit(settings.unread_per_user, settings.unread_in_all)
        rate, burst = settings.requests_per_second, settings.burst
        self._rate = Buckets(rate, burst, clock=clock, counts=counts, name="requests")
        self._has_rate = rate > 0
        self._shares: WeakValueDictionary[tuple[str, bool], UserShare] = WeakValueDictionary()

    @asynccontextmanager
    async def lookup(self, address: str) -> AsyncIterator[None]:
        """Held while a token is looked up that is not in memory, which a client at *address* has presented.

        Addresses with too many invalid tokens share a few lookups at a time: a valid token from there waits, but is
        not rejected.
        """
        if self.failures.seconds_blocked(address):
            async with self._suspect_lookups:
                yield
        else:
            yield

    @property
    def unread(self) -> int:
        """How many bytes wait for clients and upstreams that do not read them."""
        return self._unread.held_in_all

    def share(self, user: UserInfo) -> UserShare:
        """The share that a user's requests count for. It lives as long as a plan, a request or a connection has it."""
        settings = self.settings
        exempt = user.username in settings.exempt_users or not settings.exempt_groups.isdisjoint(user.groups)
        share = self._shares.get((user.username, exempt))
        if share is None:
            share = self._shares[user.username, exempt] = UserShare(
                user.username,
                seats=self.seats,
                streams=self.streams,
                unread=self._unread,
                most_connections=0 if exempt else settings.connections_per_user,
                exempt=exempt,
            )
        return share

    def try_enter(self, share: UserShare) -> Leave | None:
        """A seat, if there is one right now; None if the caller must `wait` for it."""
        if share.exempt:
            return no_place
        if self._has_rate:
            self.check_rate(share.name)
        return self.seats.try_enter(share)

    def pass_through(self, share: UserShare) -> bool:
        """Count a request that is over as soon as it is let in, and needs a seat for no time.

        False if it must go the usual way, by `try_enter`: nothing was counted then.
        """
        if share.exempt:
            return True
        # The rate comes last: what takes from it is let in.
        return self.seats.is_free_for(share) and not (self._has_rate and self._rate.take(share.name))

    def take_seat(self, share: UserShare) -> bool:
        """Count a request and take a seat, which `UserShare.leave` gives back, if there is one right now.

        False if it must go the usual way, by `try_enter`: nothing was counted then.
        """
        if share.exempt:
            return True
        seats = self.seats
        if not seats.is_free_for(share) or (self._has_rate and self._rate.take(share.name)):
            return False
        seats.in_flight += 1
        share.seats += 1
        return True

    async def wait(self, share: UserShare) -> Leave:
        return await self.seats.wait(share)

    def open_stream(self, share: UserShare) -> Leave:
        if self._has_rate and not share.exempt:
            self.check_rate(share.name)
        return self.streams.open(share)

    def check_rate(self, key: str) -> None:
        retry_after = self._rate.take(key)
        if retry_after:
            raise TooManyRequests(
                "too many requests", cause="the user's rate limit is exceeded", retry_after=retry_after
            )
