"""What is written down about a request to an API that decides itself: audit events, and lines of the log.

Called by the gatekeeper. Without the section ``audit`` only refusals and failures leave a line in the log.
"""

from __future__ import annotations

import logging

from ostiary.backend.request import BackendRequest
from ostiary.core.clock import Clock
from ostiary.core.delegation import Delegation
from ostiary.errors import AccessRefused, AuditUnavailable
from ostiary.gateway.audit.audit_ids import AuditIds
from ostiary.gateway.audit.auditor import Auditor, Prepared
from ostiary.model import Decision, RequestInfo, UserInfo

log = logging.getLogger("ostiary.backend")


class BackendRecords:
    """*auditor* is None where nothing is recorded."""

    def __init__(self, auditor: Auditor | None, clock: Clock) -> None:
        self._auditor = auditor
        self._monotonic = clock.monotonic
        self.new_id = AuditIds().take if auditor is None else auditor.audit_id

    def prepare(
        self,
        request: BackendRequest,
        info: RequestInfo,
        user: UserInfo | None,
        decision: Decision | None = None,
        delegation: Delegation | None = None,
        *,
        long_running: bool = False,
    ) -> Prepared | None:
        """What the events of such requests share; None if nobody wants them."""
        if self._auditor is None:
            return None
        return self._auditor.prepare(
            info,
            user,
            request_uri=request.target.decode("latin-1"),
            decision=decision,
            long_running=long_running,
            delegation=delegation,
        )

    def record_receipt(self, audit: Prepared, request: BackendRequest, request_id: str, received_at: float) -> None:
        """The first event of a request that is let through; raises `AuditUnavailable`."""
        if audit.wants_received:
            audit.record_received(request_id, self._origin(request), received_at)

    def record_end(
        self, audit: Prepared, request: BackendRequest, request_id: str, status: int, received_at: float
    ) -> None:
        """The last event of a request."""
        at = self._monotonic()
        try:
            audit.complete(request_id, self._origin(request), status, received_at=received_at, at=at)
        except AuditUnavailable as error:
            # The answer is on its way. The next request finds out before anything is done.
            log.error("an audit event could not be stored: %s", error.cause)

    def record_panic(self, audit: Prepared, request: BackendRequest, request_id: str, received_at: float) -> None:
        """The application has failed in the middle of a request."""
        try:
            audit.record_panic(request_id, self._origin(request), received_at=received_at, at=self._monotonic())
        except AuditUnavailable as error:
            log.error("an audit event could not be stored: %s", error.cause)

    def record_refusal(
        self,
        request: BackendRequest,
        refusal: AccessRefused,
        request_id: str,
        received_at: float,
        user: UserInfo | None = None,
    ) -> None:
        """A request that was answered before anything was decided about it. *user* is None if nobody was identified."""
        self.log_refusal(refusal, request_id, "" if user is None else user.username)
        path = request.target.partition(b"?")[0].decode("latin-1")
        audit = self.prepare(request, RequestInfo(request.method.lower(), request.method, path), user)
        if audit is None:
            return
        try:
            audit.complete_with(
                request_id,
                self._origin(request),
                refusal.status,
                received_at=received_at,
                at=self._monotonic(),
                message=refusal.cause or refusal.summary,
            )
        except AuditUnavailable as error:
            log.error("an audit event could not be stored: %s", error.cause)

    def log_refusal(self, refusal: AccessRefused, request_id: str, username: str = "") -> None:
        """A line for the operator; the id leads from the answer to it."""
        level = logging.ERROR if refusal.status >= 500 else logging.INFO
        extra = {"request_id": request_id, "status": refusal.status, "user": username}
        log.log(
            level, "request %s: %s (%d): %s", request_id, refusal.summary, refusal.status, refusal.cause, extra=extra
        )

    def _origin(self, request: BackendRequest) -> str:
        assert self._auditor is not None, "there is an event to write"
        return self._auditor.origin((request.remote,), request.user_agent.decode("latin-1"))

    async def close(self) -> None:
        if self._auditor is not None:
            await self._auditor.close()
