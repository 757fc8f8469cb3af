"""Makes the auditor that the configuration asks for, with its policy and its providers.

Called by the app.
"""

from __future__ import annotations

from ostiary.core.abilities import ability
from ostiary.core.clock import Clock
from ostiary.gateway.audit.auditor import Auditor
from ostiary.gateway.audit.batched import BatchedSink
from ostiary.gateway.config.settings import GatewayConfig, Provider
from ostiary.interfaces.audit import AuditProvider, Begins, RecordsAtOnce
from ostiary.wire.audit import DEFAULT_POLICY, load_policy


def open_auditor(config: GatewayConfig, clock: Clock) -> Auditor:
    """Raises `AuditUnavailable` if the audit log cannot be opened."""
    configured = config.audit
    return Auditor(
        DEFAULT_POLICY if configured.policy is None else load_policy(configured.policy),
        [_sink(provider, blocking=configured.blocking) for provider in config.audit_sinks],
        clock=clock,
        blocking=configured.blocking,
        may_refuse=configured.blocking,
        tells_upstream=len(config.upstreams) > 1,
    )


def _sink(provider: Provider[AuditProvider], *, blocking: bool) -> RecordsAtOnce:
    beginning = ability(provider.instance, Begins)
    if beginning is not None:
        beginning.begin(blocking=blocking)
    at_once = ability(provider.instance, RecordsAtOnce)
    if at_once is not None:
        return at_once
    return BatchedSink(provider.instance, name=provider.name, blocking=blocking)
