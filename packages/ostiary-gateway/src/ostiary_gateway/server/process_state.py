"""State of a worker that outlives reloads: cached tokens, limits, metrics, recent denials, and the exchange of counts.

The first app opens it; each reload passes it to the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ostiary import __version__
from ostiary.core.clock import Clock
from ostiary.errors import OstiaryError
from ostiary_gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.store_health import StoreHealth
from ostiary_gateway.authorization.denials import RecentDenials, Refusal
from ostiary_gateway.authorization.recent_decisions import RecentDecisions
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.checks import is_open_to_all
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.interfaces.store_capabilities import CountStore, NoteStore
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.observability.repeated_log import RepeatedLog
from ostiary_gateway.replicas import worker_messages as messages
from ostiary_gateway.replicas.cluster_lookup import (
    ENDED_TOPIC,
    NOTED_ENDED,
    NOTED_REFUSALS,
    REFUSAL_TOPIC,
    MessageWriter,
)
from ostiary_gateway.replicas.owner import StoreOwner, guard
from ostiary_gateway.replicas.replica import Replica
from ostiary_gateway.replicas.worker_ipc import NoOtherWorkers, Workers
from ostiary_gateway.sessions import Tokens

# Exchange of counts with the other replicas, if the token store supports it. While the store is unavailable, every
# replica counts alone.

# The reference documents by how much replicas can differ because of this.
PAUSE_SECONDS = 0.5
# Timeout for the last exchange when a worker stops.
LAST_EXCHANGE_SECONDS = 1.0
# Interval of repeated log lines while the store is unavailable.
LOG_SECONDS = 60.0

log = logging.getLogger("ostiary.gateway")


class CountExchange:
    """Exchange the counts of this worker with the other replicas, through the token store."""

    def __init__(self, counts: ReplicatedCounts, metrics: Metrics, clock: Clock) -> None:
        self._counts = counts
        self._log = RepeatedLog(log, clock, interval=LOG_SECONDS)
        self.is_alone = False
        self._under_way: asyncio.Task[None] | None = None
        metrics.counts_alone.read_from(lambda: 1 if self.is_alone else 0)
        metrics.counts_waiting.read_from(lambda: counts.waiting)
        metrics.counts_dropped.read_from(lambda: counts.dropped)

    async def run(self) -> None:
        """Exchange as long as the gateway runs: immediately after a count changes, then at most once per pause."""
        while True:
            await self._counts.wait_for_reports()
            await self.exchange()
            await asyncio.sleep(PAUSE_SECONDS)

    async def exchange(self) -> None:
        """Exchange the pending counts. A cancelled caller, as at a reload, does not cancel the exchange.

        After a partial exchange the effect on the store would be unknown.
        """
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._exchange())
        await asyncio.shield(self._under_way)

    async def _exchange(self) -> None:
        try:
            await self._counts.exchange()
        except Exception as error:
            self.is_alone = True
            cause = error.cause or error.summary if isinstance(error, OstiaryError) else type(error).__name__
            message = "the token store keeps no counts at the moment: this replica counts requests alone"
            self._log.write(logging.ERROR, message, {"cause": cause})
        else:
            if self.is_alone:
                log.warning("the replicas count together again", extra={"left_out": self._log.end()})
            self.is_alone = False

    async def finish(self) -> None:
        """Exchange the pending counts before the worker stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_EXCHANGE_SECONDS):
                await self._settle_all()
        if self._under_way is not None:
            self._under_way.cancel()

    async def _settle_all(self) -> None:
        while self._counts.waiting:
            await self.exchange()
            if self.is_alone:
                return


async def no_replica() -> Replica | None:
    """Return None: no replica state is available yet."""
    return None


@dataclass(slots=True)
class Shared:
    """State shared by successive configurations."""

    tokens: Tokens
    authenticator: TokenAuthenticator
    limits: Limits
    metrics: Metrics
    store_health: StoreHealth
    counts: ReplicatedCounts
    refusals: RecentDenials
    ended: EndedRequests
    recent: RecentDecisions
    # The owner of the token store, if the store records one.
    owner: StoreOwner | None = None
    siblings: Workers = field(default_factory=NoOtherWorkers)
    # None if the store has no counts for replicas.
    count_exchange: CountExchange | None = None
    # Publish denials and ended requests so that other replicas can explain them; empty if the store has no messages.
    note_writers: tuple[MessageWriter[Refusal] | MessageWriter[EndedRequest], ...] = ()
    # Returns the state of the replica that this worker belongs to.
    own_replica: Callable[[], Awaitable[Replica | None]] = no_replica

    async def replica(self) -> Replica | None:
        return await self.own_replica()


def open_shared(config: GatewayConfig, clock: Clock, counts: ReplicatedCounts) -> Shared:
    store, owner = guard(config.store.instance, config.owner)
    tokens = Tokens(
        store,
        clock=clock,
        lifetime=config.tokens.lifetime,
        session_lifetime=config.tokens.session,
        sessions_per_user=config.tokens.sessions_per_user,
    )
    limits, metrics = Limits(config.limits, clock=clock, counts=counts), Metrics(version=__version__)

    def on_revoked(revocation: Revocation, cut: int) -> None:
        metrics.revocations.inc(revocation.kind.value)
        recorded_at = revocation.recorded_at or clock.now()
        metrics.revocation_lag.observe(max(0.0, (clock.now() - recorded_at).total_seconds()))
        extra = {"kind": revocation.kind.value, **_log_fields(revocation), "by": revocation.by, "streams": cut}
        log.info("a revocation took effect", extra=extra)

    authenticator = TokenAuthenticator(
        tokens,
        clock,
        on_revoked=on_revoked,
        max_stale=config.tokens.max_stale.total_seconds(),
    )
    store_health = StoreHealth(tokens, clock)
    metrics.default_configuration.set(1 if is_open_to_all(config) else 0)
    refusals, ended = RecentDenials(clock=clock), EndedRequests(clock=clock)
    recent = RecentDecisions(clock=clock)
    shared = Shared(tokens, authenticator, limits, metrics, store_health, counts, refusals, ended, recent, owner)

    def on_unsaved(revocation: Revocation) -> None:
        log.error(
            "a revocation could not be stored: it is in effect in this gateway; retrying",
            extra={"kind": revocation.kind.value, **_log_fields(revocation), "by": revocation.by},
        )
        authenticator.end_at_once(revocation)
        store_health.hurry()
        shared.siblings.tell(messages.UNSAVED, messages.unsaved_json(revocation))

    tokens.on_unsaved = on_unsaved
    count_store = ability(tokens.store, CountStore)
    if count_store is not None:
        counts.join(count_store)
        shared.count_exchange = CountExchange(counts, metrics, clock)
    shared.note_writers = _note_writers(shared, clock)
    _read_gauges(shared)
    return shared


def _note_writers(shared: Shared, clock: Clock) -> tuple[MessageWriter[Refusal] | MessageWriter[EndedRequest], ...]:
    """Publish denials and ended requests to other replicas, if the store supports it."""
    notes, dropped = ability(shared.tokens.store, NoteStore), shared.metrics.notes_dropped
    if notes is None:
        return ()
    refusals = MessageWriter(
        notes, REFUSAL_TOPIC, NOTED_REFUSALS, clock=clock, on_dropped=lambda: dropped.inc(REFUSAL_TOPIC)
    )
    ended = MessageWriter(notes, ENDED_TOPIC, NOTED_ENDED, clock=clock, on_dropped=lambda: dropped.inc(ENDED_TOPIC))
    shared.refusals.on_recorded = refusals.add
    shared.ended.on_recorded = ended.add
    return refusals, ended


def _read_gauges(shared: Shared) -> None:
    """Let the gauges read their values when metrics are collected."""
    metrics, limits, authenticator, store_health = (
        shared.metrics,
        shared.limits,
        shared.authenticator,
        shared.store_health,
    )
    metrics.open_streams.read_from(lambda: limits.streams.open_in_all)
    metrics.tokens_live.read_from(lambda: authenticator.size)
    metrics.queued.read_from(lambda: limits.seats.queued)
    metrics.in_flight.read_from(lambda: limits.seats.in_flight)
    metrics.revocations_age.read_from(lambda: authenticator.feed.age)
    metrics.store_failing.read_from(lambda: 1 if store_health.trouble else 0)


def _log_fields(revocation: Revocation) -> dict[str, str]:
    """Return the log fields that identify what was revoked."""
    match revocation.kind:
        case RevocationKind.TOKEN:
            # Enough to find it in the store. The whole digest is not logged.
            return {"digest": revocation.value[:8]}
        case RevocationKind.SESSION:
            return {"session_id": revocation.value}
        case RevocationKind.ORIGIN:
            return {"origin": revocation.value[:8], "user": revocation.owner}
        case RevocationKind.BEFORE:
            return {"before": "now" if revocation.at is None else revocation.at.isoformat()}
        case kind:
            return {kind.value: revocation.value}
