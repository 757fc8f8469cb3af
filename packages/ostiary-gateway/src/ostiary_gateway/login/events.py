"""Audit events of ``/auth``, and error responses without confidential detail."""

from __future__ import annotations

from dataclasses import replace

from ostiary.core.redaction import redact
from ostiary.errors import OstiaryError, ProviderError
from ostiary_gateway.audit.sign_ins import LoginEvent, LoginEventKind, OnEvent
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.groups import ContractBroken
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import claimed_name, secrets_in
from ostiary_gateway.observability.reasons import reason_of

LONGEST_NAME = 100


def failure_answer(error: Exception) -> LoginAnswer:
    """Return the response to an outage or a contract violation of a provider."""
    known_outage = isinstance(error, (ProviderError, OSError)) and not isinstance(error, ContractBroken)
    reported = error.reported if isinstance(error, ProviderError) else ""
    return answers.outage(503 if known_outage else 500, reported)


class LoginEvents:
    """Emit an event for each outcome, and choose the response to failures."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event

    def record_session(
        self, kind: LoginEventKind, request: LoginRequest, session: Session, *, status: int = 200, reason: str = ""
    ) -> None:
        self._emit(
            kind,
            request,
            status,
            provider=session.provider,
            username=session.user.username,
            session=session.id,
            reason=reason,
        )

    def record_logout(self, request: LoginRequest, *, provider: str, username: str, sessions: int, status: int) -> None:
        """Record that an IdP ended a sign-in, and how many sessions of this user ended with it."""
        ended = f"{sessions} session{'' if sessions == 1 else 's'} ended"
        reason = f"logout by the identity system: {ended}"
        self._emit(LoginEventKind.ENDED, request, status, provider=provider, username=username, reason=reason)

    def record_refusal(
        self, error: OstiaryError, request: LoginRequest, answer: LoginAnswer, provider: str = ""
    ) -> LoginAnswer:
        """Record a denial. Return *answer*, which is sent to the client."""
        return self._record(LoginEventKind.REFUSED, request, provider, error, answer)

    def record_failure(
        self, error: Exception, request: LoginRequest, provider: str = "", *, instead: LoginAnswer | None = None
    ) -> LoginAnswer:
        """Record an outage or a contract violation of a provider. *instead* replaces the default response."""
        kind = LoginEventKind.CONTRACT_BROKEN if isinstance(error, ContractBroken) else LoginEventKind.OUTAGE
        return self._record(kind, request, provider, error, instead or failure_answer(error))

    def record_answer(self, request: LoginRequest, answer: LoginAnswer, *, visitor: str = "") -> LoginAnswer:
        """Record an error that is not recorded yet. Called last, for every response.

        This way the operator can find every request id that is shown to a user.
        """
        if answer.recorded or answer.routine or answer.status < 400:
            return answer
        asks = answer.status == 401 and bool(answer.header("WWW-Authenticate"))
        kind = LoginEventKind.CHALLENGED if asks else LoginEventKind.REFUSED
        self._emit(
            kind,
            request,
            answer.status,
            username=visitor,
            reason=answer.message or "refused; see the page or the error code",
        )
        return replace(answer, recorded=True)

    def record_unreadable(self, request: LoginRequest, status: int, reason: str) -> None:
        """Record a request that could not be parsed."""
        self._emit(LoginEventKind.REFUSED, request, status, reason=reason)

    def _record(
        self, kind: LoginEventKind, request: LoginRequest, provider: str, error: Exception, answer: LoginAnswer
    ) -> LoginAnswer:
        reason = reason_of(error, sent=secrets_in(request))
        username = error.username if isinstance(error, OstiaryError) else ""
        self._emit(kind, request, answer.status, provider=provider, username=username, reason=reason)
        return replace(answer, recorded=True)

    def _emit(
        self,
        kind: LoginEventKind,
        request: LoginRequest,
        status: int,
        *,
        provider: str = "",
        username: str = "",
        session: str = "",
        reason: str = "",
    ) -> None:
        # Users type passwords into the wrong field: redact what looks like a secret.
        claimed = "" if username else redact(claimed_name(request)[:LONGEST_NAME])
        self._on_event(
            LoginEvent(
                kind,
                status,
                provider,
                username,
                session,
                request.remote_address,
                reason,
                id=request.request_id,
                method=request.method,
                path=request.path,
                claimed=claimed,
            )
        )
