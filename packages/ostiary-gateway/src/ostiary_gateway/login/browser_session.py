"""Browser sessions: the user who is signed in on the gateway's own pages.

Every sign-in starts a new session and ends the previous one of this browser. Its new secret is only in the browser's
cookie, which opens the pages below ``/auth`` and nothing else. An attestation older than a token's lifetime is checked
again before it is used.
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
    """A signed-in user on our pages. `has_api_tokens`: they may use the page of API tokens."""

    session: Session
    secret: Secret
    has_api_tokens: bool = False

    @property
    def keeping(self) -> Secret:
        """The secret that unseals the state stored for this session."""
        return keeping_secret(self.secret)

    @property
    def form_token(self) -> str:
        """The hidden field of each form of this session. No other site can know it."""
        return form_token(self.secret)

    @property
    def stream_key(self) -> str:
        """The key in the URL of an event stream. It is valid for streams only, because URLs may be logged."""
        return _code_of(self.secret, b"ostiary stream")


def form_token(secret: Secret) -> str:
    """Return the form token of a browser with *secret*, which is in one of its cookies."""
    return _code_of(secret, b"ostiary form")


def _code_of(secret: Secret, purpose: bytes) -> str:
    code = hmac.digest(secret.reveal().encode(), purpose, sha256)
    return base64.urlsafe_b64encode(code).decode().rstrip("=")


class BrowserSessions:
    """Browser sessions in the token store: begin, find, attest and end."""

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
        """Start a session and end the previous one. Return it with its Set-Cookie header."""
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
        """Return the visitor's identity, as recent as a token's would be.

        Raises `LoginRefused` if they may not sign in.

        The provider's stored state stays with the browser session; `hand_over` moves it to another session.
        """
        visitor = await self._current(visitor)
        return self._signed_in(visitor.session, replace(await self._attest(visitor, request), kept=None))

    async def hand_over(self, visitor: Visitor, request: LoginRequest) -> SignedIn:
        """Like `attest`, but move the provider's state to a session that outlives this one, such as a command line's.

        Two sessions cannot share the state: the IdP would treat the second use of a refresh token as theft. The browser
        session can then not be checked with the provider, and expires as early as other unchecked sessions.
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
        """Check that the session is still valid. Return it with the number of the last revocation before that check.

        The order matters: a revocation from this moment on also ends what is issued from the session.
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
        # Earlier versions sealed sessions with the cookie itself.
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
        """Return a sign-in for tokens issued from a browser session. They share its origin and end with it."""
        attested = replace(attested, origins=session.origins, until=self._last_end(session))
        return SignedIn(session.provider, attested, session.sequence)

    def _last_end(self, session: Session) -> datetime | None:
        """Return when tokens issued from *session* must have expired; None if they may outlive the session.

        They may not if the user cannot be checked again or the IdP limits the sign-in.
        """
        is_unchecked = self._lengths.of(session.provider, kept=bool(session.sealed)) is not None
        is_shorter = session.expires_at < session.created_at + self._tokens.session_lifetime
        return session.expires_at if is_unchecked or is_shorter else None
