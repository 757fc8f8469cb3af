"""Tokens of workloads, API tokens and scoped tokens: an access token without a refresh token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.interfaces.token_store import Found, Session, SessionKind, TokenKind, TokenRecord, TokenStore
from ostiary_gateway.sessions.authentication_context import without_context
from ostiary_gateway.sessions.records import check_storable
from ostiary_gateway.sessions.revocations import UnsavedRevocations
from ostiary_gateway.wire.token_format import ACCESS_PREFIX, API_PREFIX, digest, new_session_id, new_token

# Session limits per user. Workloads sign in often, and counting is as expensive as storing, so the store is queried
# only occasionally: each process may exceed the limit by one percent.

# Number of users whose remaining allowance is cached.
MOST_REMEMBERED = 10_000
_SHARE = 100

Count = Callable[[str], Awaitable[int]]


class Allowance:
    """A limit of about *most* sessions per user; *count* returns the current number. Zero: unlimited."""

    def __init__(self, most: int, count: Count) -> None:
        self.most = most
        self._count = count
        # Remaining sessions per user until the store is queried again.
        self._left: dict[str, int] = {}

    async def take(self, username: str) -> bool:
        """Whether the user may have one more; if so, count it."""
        if not self.most:
            return True
        if not await self.has_room(username):
            return False
        self._left[username] -= 1
        return True

    async def has_room(self, username: str) -> bool:
        """Whether the user may have one more."""
        if not self.most:
            return True
        remaining = self._left.pop(username, 0)
        if remaining <= 0:
            remaining = min(self.most - await self._count(username), max(self.most // _SHARE, 1))
        if remaining <= 0:
            return False
        if len(self._left) >= MOST_REMEMBERED:
            del self._left[next(iter(self._left))]
        self._left[username] = remaining
        return True


# Default limits per user: tokens that workloads exchanged for a proof, and API tokens.
TOKENS_PER_USER = 10_000
API_TOKENS_PER_USER = 100


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new access token without a refresh token. The token is not stored and cannot be retrieved later."""

    session: Session
    token: Secret
    expires_at: datetime


class ProgramTokens:
    """Issue access tokens that cannot be refreshed: for workloads, API tokens and scoped tokens."""

    def __init__(self, store: TokenStore, *, clock: Clock, tokens_per_user: int, api_tokens_per_user: int) -> None:
        self.store = store
        self.unsaved = UnsavedRevocations()
        self._clock = clock
        limits = {SessionKind.EXCHANGE: tokens_per_user, SessionKind.API_TOKEN: api_tokens_per_user}
        self._allowances = {
            kind: Allowance(most, partial(store.count_sessions, kind=kind)) for kind, most in limits.items()
        }

    async def sequence(self) -> int:
        """Return the number of the last revocation: what begins now is ended by later ones only."""
        return (await self.store.revocations_after(None)).head

    async def issue_token(
        self,
        user: UserInfo,
        *,
        provider: str,
        sources: tuple[tuple[str, str], ...] = (),
        client: str = "",
        name: str = "",
        lifetime: timedelta,
        delegation: str = "",
        at: datetime | None = None,
        until: datetime | None = None,
        sequence: int | None = None,
        origins: tuple[str, ...] = (),
    ) -> IssuedToken:
        """Begin a session with one access token that lasts as long: for a workload, or with a *name* an API token.

        *at*, *until* and *sequence* are as in `issue`. Raises `LoginRefused` if it is revoked while it begins, or if
        the user has too many of this kind. Sign-ins are counted separately.
        """
        if lifetime <= timedelta(0):
            raise ValueError("a token lives longer than no time")
        now = self._clock.now()
        start = now if at is None else min(at, now)
        if sequence is None and at is None:
            sequence = await self.sequence()
        session = Session(
            id=new_session_id(),
            # How the owner signed in does not apply to the bearer of this token.
            user=without_context(user),
            provider=provider,
            created_at=start,
            expires_at=start + lifetime,
            sources=sources,
            client=client,
            sequence=sequence,
            kind=SessionKind.API_TOKEN if name else SessionKind.EXCHANGE,
            name=name,
            origins=origins,
        )
        session = ending_by(until, session)
        check_answer(session)
        if not await self._allowances[session.kind].take(user.username):
            raise _too_many_tokens(self._allowances[session.kind].most)
        prefix = API_PREFIX if name else ACCESS_PREFIX
        token, record = _access_token(session, now, session.expires_at, delegation, prefix)
        await self.store.add(session, [record])
        return IssuedToken(session, token, session.expires_at)

    async def check_limit(self, username: str) -> None:
        """Raise `LoginRefused` if the user has too many exchanged tokens.

        For callers that write to the store before `issue_token`, and should not if no token is issued.
        """
        allowance = self._allowances[SessionKind.EXCHANGE]
        if not await allowance.has_room(username):
            raise _too_many_tokens(allowance.most)

    async def mint(self, session: Session, *, lifetime: timedelta, delegation: str) -> IssuedToken:
        """Issue one more access token under an active session, which it does not outlive.

        Raises `LoginRefused` if the session is not active. The caller authorizes and limits such requests.
        """
        if lifetime <= timedelta(0):
            raise ValueError("a token lives longer than no time")
        now = self._clock.now()
        token, record = _access_token(session, now, min(now + lifetime, session.expires_at), delegation)
        is_unsaved = bool(self.unsaved) and self.unsaved.end(Found(record, session))
        if is_unsaved or not await self.store.add_tokens(session.id, [record]):
            raise session_ended("the session is unknown, expired or revoked")
        return IssuedToken(session, token, record.expires_at)


def _access_token(
    session: Session, now: datetime, expires_at: datetime, delegation: str, prefix: bytes = ACCESS_PREFIX
) -> tuple[Secret, TokenRecord]:
    token = new_token(prefix)
    record = TokenRecord(digest(token.reveal()), session.id, now, expires_at, TokenKind.ACCESS, delegation)
    return token, record


def _too_many_tokens(most: int) -> LoginRefused:
    return LoginRefused(
        "this user has too many tokens",
        cause=f"there are {most} that have neither expired nor been revoked",
        hint="keep a token and use it until it expires, or revoke those that nobody needs",
    )


def ending_by(until: datetime | None, session: Session) -> Session:
    """Return *session*, limited to end by *until*. Raises `LoginRefused` if that is before it begins."""
    if until is None or until >= session.expires_at:
        return session
    if until <= session.created_at:
        raise session_ended("it has ended at the identity system")
    return replace(session, expires_at=until)


def session_ended(cause: str) -> LoginRefused:
    return LoginRefused("this session has expired or was revoked: sign in again", cause=cause)


def check_answer(session: Session) -> None:
    try:
        check_storable(session)
    except ValueError as error:
        summary = f'the identity provider "{session.provider}" returned values that a token cannot hold'
        raise ProviderError(summary, cause=str(error), code="provider-failed") from None
