"""What a worker keeps over reloads: tokens in use, limits, metrics, and what the ids of refusals stand for.

Called by the app: the first one opens it, and each reload hands it to the next.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ostiary import __version__
from ostiary.core.abilities import ability
from ostiary.core.clock import Clock
from ostiary.core.counting.replicated_counts import ReplicatedCounts
from ostiary.core.tokens import Tokens
from ostiary.gateway.admit.limits import Limits
from ostiary.gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary.gateway.authenticate.authenticator import TokenAuthenticator
from ostiary.gateway.authenticate.store_health import StoreHealth
from ostiary.gateway.authorize.refusals import Refusal, Refusals
from ostiary.gateway.config.rules import is_open_to_all
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.process.app.count_exchange import CountExchange
from ostiary.gateway.replicas.every_request import ENDED_TOPIC, NOTED_ENDED, NOTED_REFUSALS, REFUSAL_TOPIC
from ostiary.gateway.replicas.note_writer import NoteWriter
from ostiary.gateway.replicas.owner import StoreOwner, guard
from ostiary.gateway.replicas.replica import Replica
from ostiary.gateway.siblings import messages
from ostiary.gateway.siblings.channel import NoSiblings, Siblings
from ostiary.interfaces.store_abilities.replicas import CountStore, NoteStore
from ostiary.interfaces.token_store import Revocation, RevocationKind

log = logging.getLogger("ostiary.gateway")


async def no_replica() -> Replica | None:
    """Nobody speaks for the replica yet."""
    return None


@dataclass(slots=True)
class Shared:
    """What outlives a reload."""

    tokens: Tokens
    authenticator: TokenAuthenticator
    limits: Limits
    metrics: Metrics
    store_health: StoreHealth
    counts: ReplicatedCounts
    refusals: Refusals
    ended: EndedRequests
    # Whose the token store is, if it is one that knows.
    owner: StoreOwner | None = None
    siblings: Siblings = field(default_factory=NoSiblings)
    # None if the store keeps no counts for replicas.
    count_exchange: CountExchange | None = None
    # What other replicas shall be able to explain; none if the store keeps no notes.
    note_writers: tuple[NoteWriter[Refusal] | NoteWriter[EndedRequest], ...] = ()
    # How the replica is that this worker belongs to.
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
    refusals, ended = Refusals(clock=clock), EndedRequests(clock=clock)
    shared = Shared(tokens, authenticator, limits, metrics, store_health, counts, refusals, ended, owner)

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


def _note_writers(shared: Shared, clock: Clock) -> tuple[NoteWriter[Refusal] | NoteWriter[EndedRequest], ...]:
    """Let refusals and other ends of requests be written down for other replicas, where the store can keep them."""
    notes, dropped = ability(shared.tokens.store, NoteStore), shared.metrics.notes_dropped
    if notes is None:
        return ()
    refusals = NoteWriter(
        notes, REFUSAL_TOPIC, NOTED_REFUSALS, clock=clock, on_dropped=lambda: dropped.inc(REFUSAL_TOPIC)
    )
    ended = NoteWriter(notes, ENDED_TOPIC, NOTED_ENDED, clock=clock, on_dropped=lambda: dropped.inc(ENDED_TOPIC))
    shared.refusals.on_recorded = refusals.add
    shared.ended.on_recorded = ended.add
    return refusals, ended


def _read_gauges(shared: Shared) -> None:
    """Let the gauges read their values when they are asked for."""
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
    """What was revoked, as fields of a log line."""
    match revocation.kind:
        case RevocationKind.TOKEN:
            # Enough to find it in the store by. The whole digest is not logged.
            return {"digest": revocation.value[:8]}
        case RevocationKind.SESSION:
            return {"session_id": revocation.value}
        case RevocationKind.ORIGIN:
            return {"origin": revocation.value[:8], "user": revocation.owner}
        case RevocationKind.BEFORE:
            return {"before": "now" if revocation.at is None else revocation.at.isoformat()}
        case kind:
            return {kind.value: revocation.value}
