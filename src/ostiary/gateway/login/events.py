"""What happened at ``/auth``, for the log, the metrics and the audit record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ostiary.core.text import printable
from ostiary.errors import OstiaryError, ProviderError
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.groups import ContractBroken
from ostiary.gateway.login.visit import sent
from ostiary.gateway.reasons import reason_of
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import Session

log = logging.getLogger("ostiary.gateway.login")


class LoginEventKind(Enum):
    ISSUED = "issued"
    RENEWED = "renewed"
    ENDED = "ended"
    REFUSED = "refused"
    OUTAGE = "could not ask"
    CONTRACT_BROKEN = "provider breaks its contract"


@dataclass(frozen=True, slots=True)
class LoginEvent:
    """For the audit record and the log. `status` was answered; `reason` is for the operator, and holds no secret."""

    kind: LoginEventKind
    status: int
    provider: str = ""
    username: str = ""
    session: str = ""
    remote_address: str = ""
    reason: str = ""


OnEvent = Callable[[LoginEvent], None]


def log_event(event: LoginEvent) -> None:
    quiet = event.kind in (LoginEventKind.ISSUED, LoginEventKind.RENEWED, LoginEventKind.ENDED)
    level = logging.INFO if quiet else logging.WARNING
    text = "login %s: provider %s, user %s, session %s, from %s%s"
    parts = (event.provider, event.username, event.session, event.remote_address)
    reason = f": {printable(event.reason)}" if event.reason else ""
    log.log(level, text, event.kind.value, *(printable(part) or "-" for part in parts), reason)


class Teller:
    """Tells what happens, and turns what went wrong into an answer that says no more than the person may know."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event

    def session(
        self, kind: LoginEventKind, request: LoginRequest, session: Session, *, status: int = 200, reason: str = ""
    ) -> None:
        username, address = session.user.username, request.remote_address
        self._on_event(LoginEvent(kind, status, session.provider, username, session.id, address, reason))

    def refused(
        self, error: OstiaryError, request: LoginRequest, answer: LoginAnswer, provider: str = ""
    ) -> LoginAnswer:
        """Tells it, and returns *answer*, which is what the person gets."""
        return self._tell(LoginEventKind.REFUSED, request, provider, error, answer)

    def failed(
        self, error: Exception, request: LoginRequest, provider: str = "", *, instead: LoginAnswer | None = None
    ) -> LoginAnswer:
        """Nobody could be asked, or somebody answered nonsense. Who waits for something else is answered *instead*."""
        broken = isinstance(error, ContractBroken)
        known_outage = isinstance(error, (ProviderError, OSError)) and not broken
        kind = LoginEventKind.CONTRACT_BROKEN if broken else LoginEventKind.OUTAGE
        return self._tell(kind, request, provider, error, instead or answers.outage(503 if known_outage else 500))

    def _tell(
        self, kind: LoginEventKind, request: LoginRequest, provider: str, error: Exception, answer: LoginAnswer
    ) -> LoginAnswer:
        reason = reason_of(error, sent=sent(request))
        self._on_event(LoginEvent(kind, answer.status, provider, remote_address=request.remote_address, reason=reason))
        return answer
