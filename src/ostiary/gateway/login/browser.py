"""Browser sessions: who looks at the gateway's own pages.

Called by `gateway.login`. A session begins at every sign-in, under a new secret that only the browser's cookie holds,
and the one before it in this browser ends. The cookie opens the pages below ``/auth`` and nothing else. What was
attested longer ago than a token lives is asked again before anything is made of it.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256

from ostiary.core.clock import Clock
from ostiary.core.tokens import Attested, Tokens
from ostiary.errors import LoginRefused
from ostiary.gateway.login.cookies import Cookie
from ostiary.gateway.login.steps import SignedIn
from ostiary.gateway.login.visit import browser_text
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import RevocationKind, Session
from ostiary.model import Secret

Recheck = Callable[[Session, LoginRequest], Awaitable[Attested]]


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person who is signed in on our pages."""

    session: Session
    secret: Secret

    @property
    def form_token(self) -> str:
        """Stands in each form of this session; no other site can know it."""
        found = hmac.digest(self.secret.reveal().encode(), b"ostiary form", sha256)
        return base64.urlsafe_b64encode(found).decode().rstrip("=")


class Browsers:
    def __init__(self, tokens: Tokens, recheck: Recheck, *, secure: bool, clock: Clock) -> None:
        self._tokens = tokens
        self._recheck = recheck
        self._cookie = Cookie("session", secure=secure)
        self._clock = clock

    async def find(self, request: LoginRequest) -> Visitor | None:
        secret = self._cookie.of(request)
        session = await self._tokens.find_browser(secret) if secret else None
        return None if session is None else Visitor(session, Secret(secret))

    async def begin(self, request: LoginRequest, signed: SignedIn) -> tuple[Session, tuple[str, str]]:
        """A new session, and the header that gives it to the browser. The one it had ends."""
        attested = signed.attested
        begun = await self._tokens.issue_browser(
            attested.user, provider=signed.provider, sources=attested.sources, client=browser_text(request)
        )
        before = await self.find(request)
        if before is not None:
            await self.end(before.session, "ostiary: signed in anew in the same browser")
        session = begun.session
        lasts = (session.expires_at - session.created_at).total_seconds()
        return session, self._cookie.set(begun.secret.reveal(), seconds=lasts)

    async def end(self, session: Session, by: str) -> None:
        await self._tokens.revoke(RevocationKind.SESSION, session.id, by=by)

    async def attested(self, visitor: Visitor, request: LoginRequest) -> Attested:
        """Who the visitor is, as fresh as a token would be. Raises `LoginRefused` if nobody any more: signed out."""
        session = visitor.session
        if self._clock.now() - session.created_at < self._tokens.lifetime:
            return Attested(session.user, session.sources)
        try:
            attested = await self._recheck(session, request)
            if attested.user.username != session.user.username:
                raise LoginRefused("this session has ended: sign in again", cause="the user has another name now")
        except LoginRefused:
            await self.end(session, "ostiary: refused when asked again")
            raise
        return attested

    def forget(self) -> tuple[str, str]:
        return self._cookie.forget()
