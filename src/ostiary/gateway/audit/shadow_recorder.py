"""Records what a cluster decided about a request that we have decided: an audit event of its own stage.

Called by `request.shadow`. The answer of the cluster comes after the request has been answered, and often after its
last event was written, so it cannot be an annotation there. The event has the id of the request, and a stage that no
reader takes for a request's end.
"""

from __future__ import annotations

import logging

from ostiary.core.clock import Clock
from ostiary.core.users.implied_groups import with_implied_groups
from ostiary.errors import AuditUnavailable
from ostiary.gateway.audit.auditor import Auditor
from ostiary.model import Attributes, Decision, UserInfo
from ostiary.wire import audit as wire
from ostiary.wire.audit import AuditLevel

log = logging.getLogger("ostiary.gateway")

# A cluster writes what it likes.
_LONGEST_REASON = 1024


class ShadowRecorder:
    def __init__(self, auditor: Auditor, *, clock: Clock, tells_upstream: bool) -> None:
        self._auditor = auditor
        self._clock = clock
        self._tells_upstream = tells_upstream

    def record(
        self,
        audit_id: str,
        attributes: Attributes,
        decision: Decision,
        outcome: str,
        cluster_reason: str,
        *,
        actor: UserInfo | None,
        at: float,
    ) -> None:
        """*at* is when the request was decided, on the monotonic clock. Never raises."""
        request = attributes.request
        user = with_implied_groups(attributes.user)
        sender = user if actor is None else with_implied_groups(actor)
        if self._auditor.policy.scope(request, sender).level is AuditLevel.NONE:
            return
        annotations = {
            wire.DECISION: "allow" if decision.allowed else "forbid",
            wire.REASON: decision.reason,
            wire.SHADOW: outcome,
            wire.SHADOW_REASON: cluster_reason[:_LONGEST_REASON],
        }
        if self._tells_upstream:
            annotations[wire.UPSTREAM] = request.upstream
        timestamps = self._auditor.timestamps
        received, now = timestamps.stamp(at), timestamps.stamp(self._clock.monotonic())
        impersonated = None if sender == user else user
        try:
            self._auditor.accept(
                wire.shadow_line(
                    audit_id, request, sender, impersonated, received=received, stamped=now, annotations=annotations
                )
            )
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})
