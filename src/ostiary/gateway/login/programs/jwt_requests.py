"""A token of ours for a JWT of ours: token exchange (RFC 8693) with ``requested_token_type`` JWT.

Called by the routes. The issuer decides whether there is a JWT, and signs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import LoginRefused
from ostiary.gateway.audit.sign_ins import LoginEventKind
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.events import LoginEvents
from ostiary.gateway.login.visit import field
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import Found

if TYPE_CHECKING:
    from ostiary.gateway.issuer.issuer import JwtIssuer

GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  # no password
JWT = "urn:ietf:params:oauth:token-type:jwt"
# What asks for less than all that the owner may do. Whoever cannot grant it refuses: it must not be ignored.
LESS = frozenset(("scope", "actor", "actor_token", "actor_token_type", "resource", "expires_in"))


# Who presents a token, as far as its holder is still somebody.
FindToken = Callable[[str], Awaitable[Found | None]]


class JwtRequests:
    def __init__(
        self, issuer: JwtIssuer | None, find_token: FindToken, events: LoginEvents, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._issuer = issuer
        self._find_token = find_token
        self._events = events
        self._clock = clock

    async def exchange(self, request: LoginRequest) -> LoginAnswer:
        if field(request, "grant_type") != GRANT:
            return answers.grant_refusal("unsupported_grant_type")
        token = field(request, "subject_token")
        token_types = (field(request, "subject_token_type"), field(request, "requested_token_type"))
        if token is None or token_types != (ACCESS_TOKEN, JWT):
            return answers.grant_refusal("invalid_request")
        if any(name in LESS for name, _ in (*request.form, *request.query)):
            # A JWT cannot be less than its owner, so what would make it less must not be ignored.
            refusal = LoginRefused("a JWT cannot be narrowed", cause="a scope or an actor was asked for")
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_scope"))
        try:
            stored = await self._find_token(token)
        except Exception as error:
            return self._events.record_failure(error, request)
        if stored is None:
            refusal = LoginRefused("invalid subject token", cause="it is unknown, expired or revoked")
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_grant"))
        return await self.sign(stored, field(request, "audience") or "", request)

    async def sign(self, stored: Found, audience: str, request: LoginRequest) -> LoginAnswer:
        """The answer to whoever has proved that the token *stored* is theirs."""
        if self._issuer is None:
            refusal = LoginRefused("this gateway signs no JWTs", cause="issuer is not configured")
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_target"))
        # Whoever has an issuer has imported it.
        from ostiary.gateway.issuer.issuer import AudienceRefused

        try:
            signed = await self._issuer.sign(stored, audience)
        except AudienceRefused as refusal:
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_target"))
        except LoginRefused as refusal:
            answer = answers.refusal(refusal) if refusal.retry_after else answers.grant_refusal("invalid_grant")
            return self._events.record_refusal(refusal, request, answer)
        except Exception as error:
            return self._events.record_failure(error, request)
        self._events.record_session(LoginEventKind.ISSUED, request, stored.session, reason=f"JWT for {audience}")
        return answers.json_answer(
            200,
            {
                "access_token": signed.token.reveal(),
                "issued_token_type": JWT,
                "token_type": "Bearer",
                "expires_in": max(0, int((signed.expires_at - self._clock.now()).total_seconds())),
            },
        )
