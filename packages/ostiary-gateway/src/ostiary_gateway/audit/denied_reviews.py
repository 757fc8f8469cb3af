"""Record the denials of the SubjectAccessReview webhook, so that ``explain`` finds them by id.

The cluster's audit log has its own requests, but not the reason of a denial.
"""

from __future__ import annotations

import logging

from ostiary.core.clock import Clock
from ostiary.errors import AuditUnavailable
from ostiary.model import Attributes, Decision
from ostiary_gateway.audit.auditor import Auditor

log = logging.getLogger("ostiary.gateway")


class RefusedReviewRecorder:
    def __init__(self, auditor: Auditor, *, clock: Clock) -> None:
        self._auditor = auditor
        self._clock = clock

    def record(self, attributes: Attributes, decision: Decision, decision_id: str) -> None:
        uri = attributes.request.path or "/webhooks/subject-access-review"
        prepared = self._auditor.prepare(attributes.request, attributes.user, request_uri=uri, decision=decision)
        if prepared is None:
            return
        now = self._clock.monotonic()
        try:
            prepared.complete(decision_id, self._auditor.origin(()), 403, received_at=now, at=now)
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})
