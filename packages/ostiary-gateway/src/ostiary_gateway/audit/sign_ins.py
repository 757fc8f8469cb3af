"""Record sign-ins at ``/auth`` in the log, the metrics and the audit log, whether they succeed or not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ostiary.core.clock import Clock
from ostiary.core.text import printable
from ostiary.errors import AuditUnavailable
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary_gateway.observability.metrics import Metrics

log = logging.getLogger("ostiary.gateway")
login_log = logging.getLogger("ostiary_gateway.login")


class LoginEventKind(Enum):
    ISSUED = "issued"
    RENEWED = "renewed"
    STEPPED_UP = "stepped up"
    ENDED = "ended"
    CHALLENGED = "authentication required"
    REFUSED = "refused"
    OUTAGE = "could not ask"
    CONTRACT_BROKEN = "provider breaks its contract"


_QUIET = (
    *(LoginEventKind.ISSUED, LoginEventKind.RENEWED, LoginEventKind.STEPPED_UP),
    *(LoginEventKind.ENDED, LoginEventKind.CHALLENGED),
)


@dataclass(frozen=True, slots=True)
class LoginEvent:
    """A sign-in event. `status` is that of the response; `reason` is for the operator, and contains no secret.

    `id` is the request id, which the user sees too. `username` is the authenticated user; `claimed` is the name that an
    unauthenticated client gave.
    """

    kind: LoginEventKind
    status: int
    provider: str = ""
    username: str = ""
    session: str = ""
    remote_address: str = ""
    reason: str = ""
    id: str = ""
    method: str = ""
    path: str = ""
    claimed: str = ""


OnEvent = Callable[[LoginEvent], None]


def log_event(event: LoginEvent) -> None:
    level = logging.INFO if event.kind in _QUIET else logging.WARNING
    text = "login %s: provider %s, user %s, session %s, from %s%s"
    user = event.username or (f"{event.claimed} (not verified)" if event.claimed else "")
    parts = (event.provider, user, event.session, event.remote_address)
    reason = f": {printable(event.reason)}" if event.reason else ""
    # Log an authenticated user instead of the address, which other users may share.
    extra = {"request_id": event.id, "source": event.username or event.remote_address} if event.id else {}
    login_log.log(level, text, event.kind.value, *(printable(part) or "-" for part in parts), reason, extra=extra)


class SignInRecorder:
    """Log, count and record every event. Failed sign-ins are also stored, so that ``explain`` finds them by id."""

    def __init__(self, auditor: Auditor, metrics: Metrics, ended: EndedRequests, *, clock: Clock) -> None:
        self._auditor = auditor
        self._metrics = metrics
        self._ended = ended
        self._clock = clock

    def record(self, event: LoginEvent) -> None:
        log_event(event)
        self._metrics.logins.inc(event.provider, event.kind.value)
        if event.status >= 400 or event.kind is LoginEventKind.REFUSED:
            self._ended.record(_ended_request(event, self._clock.now()))
        try:
            self._audit(event)
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})

    def _audit(self, event: LoginEvent) -> None:
        user = UserInfo(event.username) if event.username else None
        info = RequestInfo(event.method.lower() or "post", event.method or "POST", event.path or "/auth")
        # Without the query, which may contain an authorization code.
        prepared = self._auditor.prepare(info, user, request_uri=info.path)
        if prepared is None:
            return
        now = self._clock.monotonic()
        notes = {
            "login": event.kind.value,
            "provider": event.provider,
            "session": event.session,
            "claimed-user": event.claimed,
        }
        prepared.complete_with(
            event.id or self._auditor.audit_id(),
            self._auditor.origin((event.remote_address,)),
            event.status,
            received_at=now,
            at=now,
            message=event.reason,
            annotations={f"ostiary.dev/{key}": value for key, value in notes.items() if value},
        )


def _ended_request(event: LoginEvent, at: datetime) -> EndedRequest:
    return EndedRequest(
        event.id,
        at,
        event.status,
        event.reason,
        event.method,
        event.path,
        event.remote_address,
        event.username or event.claimed,
        event.kind.value,
        event.provider,
    )
