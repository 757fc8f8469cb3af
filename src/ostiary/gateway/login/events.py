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
    """For the audit record and the log. `reason` is for the operator, and holds no secret."""

    kind: LoginEventKind
    provider: str = ""
    username: str = ""
    session: str = ""
    remote_address: str = ""
    reason: str = ""


OnEvent = Callable[[LoginEvent], None]


def log_event(event: LoginEvent) -> None:
    quiet = event.kind in (LoginEventKind.ISSUED, LoginEventKind.RENEWED, LoginEventKind.ENDED)
    level = logging.INFO if quiet else logging.WARNING
    text = "login %s: provider %s, user %s, session %s, from %s: %s"
    parts = (event.provider, event.username, event.session, event.remote_address, event.reason)
    log.log(level, text, event.kind.value, *(printable(part) or "-" for part in parts))


class Teller:
    """Tells what happens, and turns what went wrong into an answer that says no more than the person may know."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event

    def session(self, kind: LoginEventKind, request: LoginRequest, session: Session, reason: str = "") -> None:
        username, address = session.user.username, request.remote_address
        self._on_event(LoginEvent(kind, session.provider, username, session.id, address, reason))

    def refused(self, error: OstiaryError, request: LoginRequest, provider: str = "") -> None:
        self._tell(LoginEventKind.REFUSED, request, provider, error)

    def failed(self, error: Exception, request: LoginRequest, provider: str = "") -> LoginAnswer:
        """Nobody could be asked, or somebody answered nonsense."""
        broken = isinstance(error, ContractBroken)
        self._tell(LoginEventKind.CONTRACT_BROKEN if broken else LoginEventKind.OUTAGE, request, provider, error)
        known_outage = isinstance(error, (ProviderError, OSError)) and not broken
        return answers.outage(503 if known_outage else 500)

    def _tell(self, kind: LoginEventKind, request: LoginRequest, provider: str, error: Exception) -> None:
        event = LoginEvent(kind, provider, remote_address=request.remote_address, reason=_reason(error))
        self._on_event(event)


def _reason(error: Exception) -> str:
    if isinstance(error, OstiaryError):
        return ": ".join(filter(None, (error.summary, error.cause)))
    # Not its text: what a foreign library puts there may be a code, a password or a token.
    return f"{type(error).__module__}.{type(error).__qualname__}"
