"""Browser sessions: who is signed in on the gateway's own pages.

Called by the sign-in routes and the pages. A session begins at every sign-in, under a new secret that only the
browser's cookie holds, and the previous session of this browser ends. The cookie opens the pages below ``/auth`` and
nothing else. What was attested longer ago than a token's lifetime is checked again before it is used.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused
from ostiary.model import Secret
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.login.cookies import Cookie
from ostiary_gateway.login.identity_service import SignedIn
from ostiary_gateway.login.session_lifetimes import SessionLifetimes
from ostiary_gateway.login.visit import browser_text
from ostiary_gateway.sessions import Attested, Tokens, keeping_secret, unseal_kept

Recheck = Callable[[Session, LoginRequest, Secret | None], Awaitable[Attested]]


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person who is signed in on our pages. `has_api_tokens` tells that there is a page of API tokens for them."""

    session: Session
    secret: Secret
    has_api_tokens: bool = False

    @property
    def keeping(self) -> Secret:
        """What opens the things that are kept for this session."""
        return keeping_secret(self.secret)

    @property
    def form_token(self) -> str:
        """A hidden field in each form of this session; no other site can know it."""
        return form_token(self.secret)

    @property
    def stream_key(self) -> str:
        """In the address of a stream that a page of ours opens. It opens streams only: an address may be logged."""
        return _code_of(self.secret, b"ostiary stream")


def form_token(secret: Secret) -> str:
    """What the forms of a browser with *secret* hold, which is in one of its cookies."""
    return _code_of(secret, b"ostiary form")


def _code_of(secret: Secret, purpose: bytes) -> str:
    code = hmac.digest(secret.reveal().encode(), purpose, sha256)
    return base64.urlsafe_b64encode(code).decode().rstrip("=")


class BrowserSessions:
    def __init__(
        self, tokens: Tokens, recheck: Recheck, lengths: SessionLifetimes, *, secure: bool, clock: Clock
    ) -> None:
        self._tokens = tokens
        self._lengths = lengths
        self._recheck = recheck
        self._cookie = Cookie("session", secure=secure)
        self._clock = clock

    async def find(self, request: LoginRequest) -> Visitor | None:
        secret = self._cookie.of(request)
        session = await self._tokens.find_browser(secret) if secret else None
        return None if session is None else Visitor(session, Secret(secret))

    async def begin(self, request: LoginRequest, signed: SignedIn) -> tuple[Session, tuple[str, str]]:
        """A new session, and the header that gives it to the browser. The previous one ends."""
        attested = signed.attested
        issued = await self._tokens.issue_browser(
            attested.user,
            provider=signed.provider,
            sources=attested.sources,
            client=browser_text(request),
            kept=attested.kept,
            sequence=signed.sequence,
            origins=attested.origins,
            sign_out_hint=attested.sign_out_hint,
            session_lifetime=self._lengths.of(signed.provider, kept=attested.kept is not None),
            until=attested.until,
        )
        before = await self.find(request)
        if before is not None:
            await self.end(before.session, "ostiary: signed in again in the same browser")
        session = issued.session
        lasts = (session.expires_at - session.created_at).total_seconds()
        return session, self._cookie.set(issued.secret.reveal(), seconds=lasts)

    async def end(self, session: Session, by: str) -> None:
        await self._tokens.end_session(session, by=by)

    async def attest(self, visitor: Visitor, request: LoginRequest) -> SignedIn:
        """Who the visitor is, as fresh as a token would be. Raises `LoginRefused` if they may no longer sign in.

        What is kept for the browser's session stays there; `hand_over` gives it to another one.
        """
        visitor = await self._current(visitor)
        return self._signed_in(visitor.session, replace(await self._attest(visitor, request), kept=None))

    async def hand_over(self, visitor: Visitor, request: LoginRequest) -> SignedIn:
        """The same for a session that goes on longer than this one, a command line's: it gets what is kept, too.

        Two sessions cannot have it: the identity system would take the second use of a refresh token for theft. The
        browser's session is then one about which nobody can be asked, and ends as soon as those do.
        """
        visitor = await self._current(visitor)
        session = visitor.session
        attested = await self._attest(visitor, request)
        if attested.kept is not None:
            lasts = self._lengths.of(session.provider, kept=False)
            ends = session.expires_at if lasts is None else session.created_at + lasts
            await self._tokens.keep(session, visitor.keeping.reveal(), None, expires_at=ends)
        return self._signed_in(session, attested)

    async def _current(self, visitor: Visitor) -> Visitor:
        """The visitor with a session that is alive now, and the number of the last revocation before that was asked.

        In this order: whatever ends the session from here on also ends what is about to be made of it.
        """
        sequence = await self._tokens.sequence()
        session = await self._tokens.find_browser(visitor.secret.reveal())
        if session is None:
            raise LoginRefused(
                "this session has expired or was revoked: sign in again", cause="it has ended a moment ago"
            )
        return replace(visitor, session=replace(session, sequence=sequence))

    async def _attest(self, visitor: Visitor, request: LoginRequest) -> Attested:
        session = visitor.session
        # Sessions of an earlier version were sealed with the cookie itself.
        stored = unseal_kept(session, visitor.keeping.reveal()) or unseal_kept(session, visitor.secret.reveal())
        if self._clock.now() - session.created_at < self._tokens.lifetime:
            return Attested(session.user, session.sources, stored)
        try:
            attested = await self._recheck(session, request, stored)
            if attested.user.username != session.user.username:
                raise LoginRefused(
                    "this session has expired or was revoked: sign in again", cause="the user name has changed"
                )
        except LoginRefused as refusal:
            if refusal.retry_after is None:
                await self.end(session, "ostiary: refused by the identity provider at refresh")
            raise
        if attested.kept is not None:
            await self._tokens.keep(session, visitor.keeping.reveal(), attested.kept, expires_at=session.expires_at)
        return attested

    def forget(self) -> tuple[str, str]:
        return self._cookie.forget()

    def _signed_in(self, session: Session, attested: Attested) -> SignedIn:
        """What is made of a browser's session comes from the same sign-in, and ends with it."""
        attested = replace(attested, origins=session.origins, until=self._last_end(session))
        return SignedIn(session.provider, attested, session.sequence)

    def _last_end(self, session: Session) -> datetime | None:
        """By when what is made of *session* must have ended; None if that may go on longer than the session.

        Where nobody can be asked about the person, or the identity system ends the sign-in at some time, it may not.
        """
        is_unchecked = self._lengths.of(session.provider, kept=bool(session.sealed)) is not None
        is_shorter = session.expires_at < session.created_at + self._tokens.session_lifetime
        return session.expires_at if is_unchecked or is_shorter else None
