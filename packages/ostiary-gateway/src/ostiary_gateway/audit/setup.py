"""Build the configured auditor, with its policy and its sinks."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.clock import Clock
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.audit.batched import BatchedSink
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.audit import Audit
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.interfaces.audit import AuditProvider, Begins, RecordsAtOnce
from ostiary_gateway.wire.audit_policy import DEFAULT_POLICY, load_policy


def open_auditor(
    configured: Audit, sinks: Sequence[Provider[AuditProvider]], clock: Clock, *, tells_upstream: bool
) -> Auditor:
    """Return the auditor. Raises `AuditUnavailable` if the audit log cannot be opened."""
    return Auditor(
        DEFAULT_POLICY if configured.policy is None else load_policy(configured.policy),
        [_sink(provider, blocking=configured.blocking) for provider in sinks],
        clock=clock,
        blocking=configured.blocking,
        may_refuse=configured.blocking,
        tells_upstream=tells_upstream,
    )


def _sink(provider: Provider[AuditProvider], *, blocking: bool) -> RecordsAtOnce:
    beginning = ability(provider.instance, Begins)
    if beginning is not None:
        beginning.begin(blocking=blocking)
    at_once = ability(provider.instance, RecordsAtOnce)
    if at_once is not None:
        return at_once
    return BatchedSink(provider.instance, name=provider.name, blocking=blocking)
