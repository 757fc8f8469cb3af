"""Token buckets over shared counts: so many at once, then so many a second, for each key.

Called by the gateway's limits and by its login. Whoever shares the counts shares the buckets. Replicas on several
machines take together at most

    burst + rate * (t + L) + others * (burst + rate * s)        in any t seconds

where `others` is the number of further replicas, s is how many seconds it takes until a replica has told what it took,
and L is `LATEST_CHARGE_SECONDS`, which s must not exceed. What was too much is paid back: on average the rate is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import TooManyRequests
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts, State
from ostiary_gateway.limits.counts import NARROW_LIMIT, MemoryCounts
from ostiary_gateway.networks import network

TABLE_LIMIT = NARROW_LIMIT
# Replicas are charged for what they took within this time: the pause between two exchanges, and a slow exchange.
LATEST_CHARGE_SECONDS = 1.0


class Buckets:
    """A bucket of tokens per key: *burst* at once, then *rate* a second. Holds a bounded number of keys.

    With *counts* the buckets called *name* are those of all who share them; else they are this process's. `take`
    decides at once, and replicas reconcile what they took: see `charge`. `take_exactly` waits for what all share.
    Buckets of one name are used in one of the two ways.
    """

    # They implement `ostiary_gateway.interfaces.shared_counts.Reconciles`.
    wide = False

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        clock: Clock = SYSTEM_CLOCK,
        limit: int = TABLE_LIMIT,
        counts: ImmediateCounts | None = None,
        name: str = "",
    ) -> None:
        self._rate, self._burst = rate, float(max(burst, 1))
        # The bucket that all replicas have together holds what fills one while the latest takes are not charged yet.
        self._shared_burst = self._burst + rate * LATEST_CHARGE_SECONDS
        self._counts = MemoryCounts(clock=clock, narrow_limit=limit) if counts is None else counts
        self._prefix = f"bucket/{name}/"

    def take(self, key: str) -> float:
        """Take a token and return zero; or how many seconds it takes until there is one."""
        key = self._prefix + key
        wait = self._counts.update_now(key, self._take)
        if not wait:
            self._counts.report(key, self)
        return wait

    async def take_exactly(self, key: str) -> float:
        """As `take`. Raises `ProviderError` if the counts cannot be reached: then there is none to take."""
        return await self._counts.update(self._prefix + key, self._take)

    def empty_for(self, key: str) -> float:
        """As `take`, without taking any."""
        return self._counts.update_now(self._prefix + key, self._look)

    def __len__(self) -> int:
        assert isinstance(self._counts, MemoryCounts), "the counts of other workers are unknown"
        return len(self._counts)

    # --- changes of a bucket ---

    def _tokens(self, state: State, now: float) -> float:
        if not state:
            return self._burst
        elapsed = now - state[1]
        # The clock of a store may be set back, and then nothing is taken away for it.
        return min(self._burst, state[0] + elapsed * self._rate) if elapsed > 0 else state[0]

    def _take(self, state: State, now: float) -> tuple[State, float, float]:
        tokens = self._tokens(state, now)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        if not wait:
            tokens -= 1
        return (tokens, now), self._seconds_until_full(tokens), wait

    def _look(self, state: State, now: float) -> tuple[State, float, float]:
        tokens = self._tokens(state, now)
        return state, self._seconds_until_full(tokens), 0.0 if tokens >= 1 else (1 - tokens) / self._rate

    def _seconds_until_full(self, tokens: float) -> float:
        # A bucket that is full again is the same as none.
        return (self._burst - tokens) / self._rate if self._rate else 0.0

    # --- several replicas ---

    def charge(self, shared: State, now: float, amounts: Mapping[int, float]) -> tuple[State, float]:
        """The bucket of all replicas goes below zero when they have taken more than it had, and fills from there.

        After an outage of the store a replica is not charged for all that it let pass meanwhile: nobody is to wait for
        longer than if the replica had taken it all at once.
        """
        most = self._shared_burst
        tokens = min(most, shared[0] + max(0.0, now - shared[1]) * self._rate) if shared else most
        tokens -= min(amounts.get(0, 0.0), most)
        return (tokens, now), (most - tokens) / self._rate if self._rate else 0.0

    def adopt(self, local: State, now: float, *, shared: State, unsettled: Mapping[int, float]) -> tuple[State, float]:
        """The lower one of the two: this machine's has everything that was taken here, all replicas' what is known."""
        filled = shared[0] + max(0.0, now - shared[1]) * self._rate if shared else self._burst
        tokens = min(self._tokens(local, now), filled - unsettled.get(0, 0.0))
        return (tokens, now), self._seconds_until_full(tokens)


# One credential may use up half of what its address may: a program whose token has expired can have dozens of requests
# in flight, and only a 401 makes it refresh.
_CREDENTIALS_OF_AN_ADDRESS = 2


class FailedAttempts:
    """Counts failed authentications: of each credential, then of the address that they come from.

    Look a credential up first, and `charge` it if it is not valid: people behind one address must not lock each other
    out. A program that repeats one revoked credential is charged for that, and its address only in part, so that its
    neighbours still learn from a 401 that their own credential has expired.
    """

    def __init__(
        self,
        per_minute: float,
        *,
        clock: Clock = SYSTEM_CLOCK,
        limit: int = TABLE_LIMIT,
        counts: ImmediateCounts | None = None,
    ) -> None:
        self._enabled = per_minute > 0
        self._buckets = Buckets(per_minute / 60, per_minute, clock=clock, limit=limit, counts=counts, name="failures")
        # Of this process: a credential that fails here is looked up by each of the others as often.
        least = per_minute / _CREDENTIALS_OF_AN_ADDRESS
        self._credentials = Buckets(least / 60, least, clock=clock, limit=limit)

    def check_credential(self, digest: bytes) -> None:
        """Raise `TooManyRequests` if this credential, of which *digest* is kept, was invalid too often."""
        retry_after = self._credentials.empty_for(digest.hex()) if self._enabled else 0.0
        if retry_after:
            raise _too_many("this credential was not valid", retry_after)

    def charge(self, address: str, digest: bytes = b"") -> None:
        """Count an invalid credential; raises `TooManyRequests` if there were too many.

        *digest* tells it from others; empty if it is not even well-formed.
        """
        if not self._enabled:
            return
        if digest:
            self._credentials.take(digest.hex())
        retry_after = self._buckets.take(network(address))
        if retry_after:
            raise _too_many("too many credentials from this address were not valid", retry_after)

    def seconds_blocked(self, address: str) -> float:
        """How many seconds until an invalid credential from this address is no longer too many; zero if it is none."""
        return self._buckets.empty_for(network(address)) if self._enabled else 0.0

    def __len__(self) -> int:
        return len(self._buckets)


def _too_many(cause: str, retry_after: float) -> TooManyRequests:
    return TooManyRequests("too many failed attempts", cause=cause, retry_after=retry_after)
