"""Token buckets over shared counts, and limits on failed authentication.

Buckets are shared by everything that shares the counts. Replicas on several machines together allow at most

    burst + rate * (t + L) + others * (burst + rate * s)        in any t seconds

where `others` is the number of further replicas, s is the time in seconds until a replica has reported its takes, and L
is `LATEST_CHARGE_SECONDS`, which s must not exceed. Excess is charged later: on average the rate is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import TooManyRequests
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts, State
from ostiary_gateway.limits.counts import NARROW_LIMIT, MemoryCounts
from ostiary_gateway.networks import network

TABLE_LIMIT = NARROW_LIMIT
# Replicas are charged for takes within this time: the interval between two exchanges, and a slow exchange.
LATEST_CHARGE_SECONDS = 1.0


class Buckets:
    """A token bucket per key: *burst* tokens, refilled at *rate* per second. The number of keys is bounded.

    With *counts*, the buckets called *name* are shared by all users of the counts; otherwise they belong to this
    process. `take` decides immediately, and replicas reconcile later: see `charge`. `take_exactly` waits for the shared
    count. Buckets with one name must use only one of the two.
    """

    # Implements `ostiary_gateway.interfaces.shared_counts.Reconciles`.
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
        # The capacity of the replicas' shared bucket: one bucket, plus its refill until the latest takes are charged.
        self._shared_burst = self._burst + rate * LATEST_CHARGE_SECONDS
        self._counts = MemoryCounts(clock=clock, narrow_limit=limit) if counts is None else counts
        self._prefix = f"bucket/{name}/"

    def take(self, key: str) -> float:
        """Take a token and return zero, or return the seconds until there is one."""
        key = self._prefix + key
        wait = self._counts.update_now(key, self._take)
        if not wait:
            self._counts.report(key, self)
        return wait

    async def take_exactly(self, key: str) -> float:
        """Like `take`, but exact. Raises `ProviderError` if the counts are unreachable; then no token is taken."""
        return await self._counts.update(self._prefix + key, self._take)

    def empty_for(self, key: str) -> float:
        """Like `take`, without taking a token."""
        return self._counts.update_now(self._prefix + key, self._look)

    def __len__(self) -> int:
        assert isinstance(self._counts, MemoryCounts), "the counts of other workers are unknown"
        return len(self._counts)

    # --- changes of a bucket ---

    def _tokens(self, state: State, now: float) -> float:
        if not state:
            return self._burst
        elapsed = now - state[1]
        # If the clock of a store is set back, no tokens are removed.
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
        # A full bucket is equivalent to none.
        return (self._burst - tokens) / self._rate if self._rate else 0.0

    # --- reconciliation of replicas ---

    def charge(self, shared: State, now: float, amounts: Mapping[int, float]) -> tuple[State, float]:
        """Charge takes to the shared bucket, which may become negative and is refilled from there.

        The charge is limited: after an outage of the store, the wait is at most as long as if the replica had taken
        everything at once.
        """
        most = self._shared_burst
        tokens = min(most, shared[0] + max(0.0, now - shared[1]) * self._rate) if shared else most
        tokens -= min(amounts.get(0, 0.0), most)
        return (tokens, now), (most - tokens) / self._rate if self._rate else 0.0

    def adopt(self, local: State, now: float, *, shared: State, unsettled: Mapping[int, float]) -> tuple[State, float]:
        """Use the lower one of the local bucket, which includes all local takes, and the shared one."""
        filled = shared[0] + max(0.0, now - shared[1]) * self._rate if shared else self._burst
        tokens = min(self._tokens(local, now), filled - unsettled.get(0, 0.0))
        return (tokens, now), self._seconds_until_full(tokens)


# A credential may use half the budget of its address: a client with an expired token may have dozens of requests in
# flight, and refreshes only after a 401.
_CREDENTIALS_OF_AN_ADDRESS = 2


class FailedAttempts:
    """Limits failed authentications per credential and per address.

    Look up a credential first and `charge` it if it is invalid: users behind one address must not lock each other out.
    A client that repeats a revoked credential is charged for it, and its address only in part, so that other clients
    there still get a 401 when their credentials expire.
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
        # Per process: each process looks a credential up equally often.
        least = per_minute / _CREDENTIALS_OF_AN_ADDRESS
        self._credentials = Buckets(least / 60, least, clock=clock, limit=limit)

    def check_credential(self, digest: bytes) -> None:
        """Raise `TooManyRequests` if the credential with this *digest* was invalid too often."""
        retry_after = self._credentials.empty_for(digest.hex()) if self._enabled else 0.0
        if retry_after:
            raise _too_many("this credential was not valid", retry_after)

    def charge(self, address: str, digest: bytes = b"") -> None:
        """Count an invalid credential; raises `TooManyRequests` above the limit.

        *digest* identifies the credential; empty if it is malformed.
        """
        if not self._enabled:
            return
        if digest:
            self._credentials.take(digest.hex())
        retry_after = self._buckets.take(network(address))
        if retry_after:
            raise _too_many("too many credentials from this address were not valid", retry_after)

    def seconds_blocked(self, address: str) -> float:
        """Return the seconds until an invalid credential from this address is within the limit again, or zero."""
        return self._buckets.empty_for(network(address)) if self._enabled else 0.0

    def __len__(self) -> int:
        return len(self._buckets)


def _too_many(cause: str, retry_after: float) -> TooManyRequests:
    return TooManyRequests("too many failed attempts", cause=cause, retry_after=retry_after)
