"""Issue, find, refresh and revoke tokens, on top of a `TokenStore`, which sees only digests."""

from __future__ import annotations

from base64 import urlsafe_b64encode as b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.interfaces.token_store import (
    Found,
    Revocation,
    RevocationKind,
    Session,
    SessionKind,
    TokenKind,
    TokenRecord,
    TokenStore,
)
from ostiary_gateway.sealing import derived_key, seal_text, unseal_text
from ostiary_gateway.sessions.program_tokens import (
    API_TOKENS_PER_USER,
    TOKENS_PER_USER,
    ProgramTokens,
    check_answer,
    ending_by,
    session_ended,
)
from ostiary_gateway.wire.token_format import (
    ACCESS_PREFIX,
    APPLICATION_PREFIX,
    BROWSER_PREFIX,
    RENEWAL_PREFIX,
    application_digest,
    as_bytes,
    digest,
    new_session_id,
    new_token,
    well_formed,
)

LIFETIME = timedelta(minutes=15)
SESSION_LIFETIME = timedelta(hours=24)
SESSIONS_PER_USER = 100
# Maximum number of sessions that a new one ends, after the limit was lowered.
MOST_ENDED = 20
# Two clients of a user may send the same refresh token concurrently. The second is rejected with `retry_after`, and
# then finds the tokens of the first; only a reuse after this time is treated as theft.
REUSE_LEEWAY = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Issued:
    """A new pair of tokens. The tokens are not stored and cannot be retrieved later."""

    session: Session
    token: Secret
    expires_at: datetime
    renewal: Secret


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A session on the gateway's own pages, and the secret in the browser's cookie."""

    session: Session
    secret: Secret


@dataclass(frozen=True, slots=True)
class Attested:
    """What the providers attest about a user: the identity, and the source of each group.

    `kept` is the identity provider's state for a refresh, `origins` identify the sign-in at the IdP, and
    `sign_out_hint` is what ends it there. The sign-in ends at the IdP at `until`.
    """

    user: UserInfo
    sources: tuple[tuple[str, str], ...] = ()
    kept: Secret | None = None
    origins: tuple[str, ...] = ()
    sign_out_hint: Secret | None = None
    until: datetime | None = None


Recheck = Callable[[Session], Awaitable[Attested]]
Keep = Callable[[Issued], Awaitable[None]]
_KEPT = b"kept by an identity provider"
_HINT = b"sign-out hint of an identity provider"
# A longer one is dropped: sessions are read with every token lookup.
LARGEST_HINT = 8 * 1024


class Tokens(ProgramTokens):
    """Issue, find, refresh and revoke tokens. One instance serves one event loop.

    `on_unsaved` is called with each revocation that the store could not write.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        clock: Clock = SYSTEM_CLOCK,
        lifetime: timedelta = LIFETIME,
        session_lifetime: timedelta = SESSION_LIFETIME,
        sessions_per_user: int = SESSIONS_PER_USER,
        tokens_per_user: int = TOKENS_PER_USER,
        api_tokens_per_user: int = API_TOKENS_PER_USER,
    ) -> None:
        super().__init__(store, clock=clock, tokens_per_user=tokens_per_user, api_tokens_per_user=api_tokens_per_user)
        self.lifetime = lifetime
        self.on_unsaved: Callable[[Revocation], None] = lambda revocation: None
        self.session_lifetime = session_lifetime
        self._sessions_per_user = sessions_per_user

    async def issue(
        self,
        user: UserInfo,
        *,
        provider: str,
        sources: tuple[tuple[str, str], ...] = (),
        client: str = "",
        at: datetime | None = None,
        sequence: int | None = None,
        kept: Secret | None = None,
        session_lifetime: timedelta | None = None,
        until: datetime | None = None,
        origins: tuple[str, ...] = (),
    ) -> Issued:
        """Begin a session. Raises `LoginRefused` if it is revoked while it begins.

        *at* is when the user signed in, if that was earlier, and *sequence* the result of `sequence` at that time, so
        that later revocations apply. *kept* is sealed with the refresh token. *session_lifetime* shortens this session;
        *until* is its latest end.
        """
        now = self._clock.now()
        start = now if at is None else min(at, now)
        session = ending_by(until, self._session(user, provider, sources, client, start, session_lifetime))
        if sequence is None and at is None:
            sequence = await self.sequence()
        session = replace(session, sequence=sequence, origins=origins)
        issued, records = self._pair(session, now, kept)
        await self.store.add(issued.session, records)
        await self._end_oldest(issued.session)
        return issued

    async def issue_browser(
        self,
        user: UserInfo,
        *,
        provider: str,
        sources: tuple[tuple[str, str], ...] = (),
        client: str = "",
        kept: Secret | None = None,
        session_lifetime: timedelta | None = None,
        until: datetime | None = None,
        sequence: int | None = None,
        origins: tuple[str, ...] = (),
        sign_out_hint: Secret | None = None,
    ) -> BrowserSession:
        """Begin a session on the gateway's own pages. Raises `LoginRefused` if it is revoked while it begins.

        *sequence* and *until* are as in `issue`.
        """
        now = self._clock.now()
        session = ending_by(until, self._session(user, provider, sources, client, now, session_lifetime))
        sequence = await self.sequence() if sequence is None else sequence
        secret = new_token(BROWSER_PREFIX)
        session = replace(session, sequence=sequence, origins=origins, sealed_hint=_sealed_hint(sign_out_hint, secret))
        session = _with_kept(session, kept, keeping_secret(secret))
        record = TokenRecord(digest(secret.reveal()), session.id, now, session.expires_at, TokenKind.BROWSER)
        await self.store.add(session, [record])
        await self._end_oldest(session)
        return BrowserSession(session, secret)

    async def _end_oldest(self, new: Session) -> None:
        """Enforce the limit of sessions per user by ending the oldest. Zero: unlimited."""
        most, username = self._sessions_per_user, new.user.username
        if not most:
            return
        sessions = await self.store.sessions(username=username, kind=SessionKind.SIGN_IN, limit=most + MOST_ENDED)
        for session in sessions[most:]:
            # Of several that began at the same moment, the new one stays.
            if session.id != new.id:
                await self.end_session(session, by="ostiary: too many sessions of this user")

    def _session(
        self,
        user: UserInfo,
        provider: str,
        sources: tuple[tuple[str, str], ...],
        client: str,
        at: datetime,
        lifetime: timedelta | None,
    ) -> Session:
        session = Session(
            id=new_session_id(),
            user=user,
            provider=provider,
            created_at=at,
            expires_at=at + min(self.session_lifetime, lifetime or self.session_lifetime),
            sources=sources,
            client=client,
        )
        check_answer(session)
        return session

    async def find(self, token: str | bytes) -> Found | None:
        """Return the access token and its session. Unknown, expired and revoked tokens cost the same single lookup."""
        data = as_bytes(token)
        return await self.find_digest(digest(data)) if well_formed(data) else None

    async def lookup(self, token_digest: bytes) -> Found | None:
        """Return the token, of any kind, if it and its session are active."""
        entry = await self.store.find(token_digest)
        return None if entry is None or (self.unsaved and self.unsaved.end(entry)) else entry

    async def find_digest(self, token_digest: bytes) -> Found | None:
        """Like `find`, for a caller that has only the digest."""
        entry = await self.lookup(token_digest)
        # The prefix implies the kind, but the store is authoritative: a refresh token is not an access token.
        return entry if entry is not None and entry.token.kind is TokenKind.ACCESS else None

    async def find_browser(self, secret: str | bytes) -> Session | None:
        """Return the session of the browser with this secret."""
        data = as_bytes(secret)
        if not well_formed(data, BROWSER_PREFIX):
            return None
        entry = await self.lookup(digest(data))
        return entry.session if entry is not None and entry.token.kind is TokenKind.BROWSER else None

    async def renew(self, renewal: str | bytes, recheck: Recheck, *, keep: Keep | None = None) -> Issued:
        """Exchange a refresh token, which is thereby used, for a new pair.

        *recheck* queries the providers again about the session's user. If it raises `LoginRefused`, the session ends;
        after any other exception the refresh token remains valid. The session's expiry does not change. A token that
        was used moments ago is rejected with `retry_after`: another client has the new pair. *keep* is called with the
        new pair before it becomes valid.
        """
        renewal_digest = digest(renewal)
        since = await self.sequence()
        session = await self._renewable(renewal, renewal_digest)
        try:
            attested = await recheck(session)
            if attested.user.username != session.user.username:
                raise LoginRefused(
                    "this session has expired or was revoked: sign in again", cause="the user name has changed"
                )
        except LoginRefused as refusal:
            # With `retry_after`, another client of this user is being served; the sign-in was not denied.
            if refusal.retry_after is None:
                await self.end_session(session, by="ostiary: refused at renewal")
            raise
        now = self._clock.now()
        renewed = replace(session, user=attested.user, sources=attested.sources)
        check_answer(renewed)
        issued, records = self._pair(renewed, now, attested.kept)
        renewed = issued.session
        if keep is not None:
            await keep(issued)
        if not await self.store.renew(renewal_digest, at=now, session=renewed, tokens=records, since=since):
            # A concurrent call used the token or revoked the session; this raises the matching error.
            await self._renewable(renewal, renewal_digest)
            raise session_ended("it was revoked while it was being refreshed")
        return issued

    async def end_session(self, session: Session, *, by: str) -> int:
        """Revoke this session, as `revoke` does."""
        return await self.revoke(RevocationKind.SESSION, session.id, by=by, owner=session.user.username)

    async def revoke(
        self, kind: RevocationKind, value: str = "", *, by: str = "", at: datetime | None = None, owner: str = ""
    ) -> int:
        """Revoke durably before this returns; return how many tokens or sessions ended.

        With *at*, end only what began until then. *owner* is the user of the token or session. Set it if a user can
        cause the revocation repeatedly: a flood then affects that user alone (`Revocation.owner`). If the store cannot
        write it, this raises, and the revocation applies in this process; `save_unsaved` tries again.
        """
        revocation = Revocation(kind, value, at, by, owner=owner)
        try:
            return await self.store.revoke(revocation)
        except ProviderError:
            # Dated, so that it does not end sessions that begin before it can be recorded.
            revocation = replace(revocation, at=self._clock.now() if at is None else at)
            self.unsaved.add(revocation)
            self.on_unsaved(revocation)
            raise

    async def save_unsaved(self) -> None:
        """Write the revocations that could not be written before. Raises if they still cannot."""
        for revocation in self.unsaved:
            await self.store.revoke(revocation)
            self.unsaved.remove(revocation)

    async def marks(self, kind: RevocationKind, value: str = "") -> list[Revocation]:
        """Return the active revocations of this value: they block sign-ins that began before them."""
        return [mark for mark in await self.store.marks() if mark.kind is kind and mark.value == value]

    async def undo(self, kind: RevocationKind, value: str = "") -> int:
        """Lift all active revocations of this value; return how many. What has ended stays ended."""
        return sum([await self.store.undo(mark.sequence) for mark in await self.marks(kind, value)])

    async def sweep(self) -> int:
        """Delete what has expired. This only frees space: expired tokens are never found."""
        return await self.store.sweep()

    async def keep(self, session: Session, secret: str, kept: Secret | None, *, expires_at: datetime) -> Session:
        """Replace the provider's state of a session whose client has *secret*; end it by *expires_at*."""
        changed = replace(session, expires_at=min(session.expires_at, expires_at))
        changed = _with_kept(changed, kept, Secret(secret))
        await self.store.add(changed, [])
        return changed

    def _pair(self, session: Session, now: datetime, kept: Secret | None) -> tuple[Issued, list[TokenRecord]]:
        token, renewal = new_token(ACCESS_PREFIX), new_token(RENEWAL_PREFIX)
        session = _with_kept(session, kept, renewal)
        expires_at = min(now + self.lifetime, session.expires_at)
        records = [
            TokenRecord(digest(token.reveal()), session.id, now, expires_at, TokenKind.ACCESS),
            TokenRecord(digest(renewal.reveal()), session.id, now, session.expires_at, TokenKind.RENEWAL),
        ]
        return Issued(session, token, expires_at, renewal), records

    async def _renewable(self, renewal: str | bytes, spent: bytes) -> Session:
        """Return the session of *renewal*. Raises `LoginRefused`, with the same summary whatever the reason."""
        if not well_formed(as_bytes(renewal), RENEWAL_PREFIX):
            raise session_ended("this is not a refresh token")
        entry = await self.lookup(spent)
        if entry is None:
            raise session_ended("the refresh token is unknown, expired or revoked")
        if entry.token.kind is TokenKind.SPENT:
            raise await self._refuse_reuse(entry)
        if entry.token.kind is not TokenKind.RENEWAL:
            raise session_ended("this is not a refresh token")
        return entry.session

    async def _refuse_reuse(self, entry: Found) -> LoginRefused:
        if self._clock.now() - entry.token.issued_at <= REUSE_LEEWAY:
            summary = "this session was refreshed a moment ago: use the new tokens"
            return LoginRefused(summary, cause="the refresh token was used twice within moments", retry_after=1.0)
        by = "ostiary: a renewal token was used twice"
        await self.end_session(entry.session, by=by)
        return session_ended("the refresh token was used before")


def keeping_secret(secret: Secret) -> Secret:
    """Derive the secret that seals the provider's state in a browser session, and opens nothing else.

    The cookies of web applications contain it too: they check the same user again, and must not open the gateway's
    pages.
    """
    return Secret(b64encode(derived_key(b"keep", _KEPT, secret.reveal())).decode())


def unseal_kept(session: Session, secret: str | bytes) -> Secret | None:
    """Return the identity provider's state in *session*, for the client that has *secret*."""
    text = secret if isinstance(secret, str) else secret.decode("ascii", "replace")
    unsealed = unseal_text(session.sealed, _KEPT, text) if session.sealed else None
    return None if unsealed is None else Secret(unsealed)


def unseal_hint(session: Session, secret: Secret) -> Secret | None:
    """Return what ends the sign-in of *session* at its IdP, for the browser that has *secret*."""
    unsealed = unseal_text(session.sealed_hint, _HINT, secret.reveal()) if session.sealed_hint else None
    return None if unsealed is None else Secret(unsealed)


def _sealed_hint(hint: Secret | None, secret: Secret) -> str:
    if hint is None or len(hint.reveal().encode()) > LARGEST_HINT:
        return ""
    return seal_text(hint.reveal(), _HINT, secret.reveal())


def _with_kept(session: Session, kept: Secret | None, secret: Secret) -> Session:
    sealed = "" if kept is None else seal_text(kept.reveal(), _KEPT, secret.reveal())
    return replace(session, sealed=sealed)


class ApplicationTokens:
    """Tokens in the cookies of web applications: issued under the session of a browser, each for one application.

    The store has the digest of token and application together, so a token sent to another application is unknown.
    """

    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock

    async def issue(self, session_id: str, application: str) -> tuple[Session, Secret]:
        """Issue a token for *application*; return its current session too. Raises `LoginRefused` if that ended."""
        session = await self._tokens.store.session(session_id)
        if session is None:
            raise session_ended("the session is unknown, expired or revoked")
        token = new_token(APPLICATION_PREFIX)
        record = TokenRecord(
            application_digest(token.reveal(), application),
            session.id,
            self._clock.now(),
            session.expires_at,
            TokenKind.APPLICATION,
        )
        is_unsaved = bool(self._tokens.unsaved) and self._tokens.unsaved.end(Found(record, session))
        if is_unsaved or not await self._tokens.store.add_tokens(session.id, [record]):
            raise session_ended("the session is unknown, expired or revoked")
        return session, token

    async def find(self, token_digest: bytes) -> Found | None:
        """Return the token with this digest, if it and its session are active."""
        entry = await self._tokens.lookup(token_digest)
        return entry if entry is not None and entry.token.kind is TokenKind.APPLICATION else None
