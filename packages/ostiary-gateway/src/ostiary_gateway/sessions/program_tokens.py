"""Tokens of programs: one access token with no renewal token, and one more under a session that is there.

The base of `tokens`: who exchanges a proof of its own, makes an API token, or narrows a token, ends up here.
"""

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

# How many sessions of a kind a user may have, without counting them each time.
#
# Called by `tokens` before a program gets a token. Programs come often, and counting takes as long as storing, so the
# store is asked once in a while: the limit may be passed by a hundredth of it in each process.

# For so many users it is remembered how many more they may have.
MOST_REMEMBERED = 10_000
_SHARE = 100

Count = Callable[[str], Awaitable[int]]


class Allowance:
    """At most about *most* for each user; *count* says how many one has. Zero: any number."""

    def __init__(self, most: int, count: Count) -> None:
        self.most = most
        self._count = count
        # By user: how many more before the store is asked again.
        self._left: dict[str, int] = {}

    async def take(self, username: str) -> bool:
        """Whether the user may have one more, which is counted."""
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


# Tokens of one user that programs got for a proof of their own, and those that somebody made and named.
TOKENS_PER_USER = 10_000
API_TOKENS_PER_USER = 100


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new access token with no renewal token. This is the only time that anybody sees it."""

    session: Session
    token: Secret
    expires_at: datetime


class ProgramTokens:
    def __init__(self, store: TokenStore, *, clock: Clock, tokens_per_user: int, api_tokens_per_user: int) -> None:
        self.store = store
        self.unsaved = UnsavedRevocations()
        self._clock = clock
        limits = {SessionKind.EXCHANGE: tokens_per_user, SessionKind.API_TOKEN: api_tokens_per_user}
        self._allowances = {
            kind: Allowance(most, partial(store.count_sessions, kind=kind)) for kind, most in limits.items()
        }

    async def sequence(self) -> int:
        """The number of the last revocation: what begins now is ended by later ones only."""
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
        """Begin a session with one access token, which ends with it: for a program, or with a *name* an API token.

        *at*, *until* and *sequence* are as in `issue`. Raises `LoginRefused` if it is revoked while it begins, or if
        the user has too many of these. Sign-ins are counted apart.
        """
        if lifetime <= timedelta(0):
            raise ValueError("a token lives longer than no time")
        now = self._clock.now()
        start = now if at is None else min(at, now)
        if sequence is None and at is None:
            sequence = await self.sequence()
        session = Session(
            id=new_session_id(),
            # How its owner signed in says nothing about whoever holds it.
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
        """Raise `LoginRefused` if the user has too many tokens that programs got for proofs of their own.

        For callers that write to the store before `issue_token`, and should not if no token is issued.
        """
        allowance = self._allowances[SessionKind.EXCHANGE]
        if not await allowance.has_room(username):
            raise _too_many_tokens(allowance.most)

    async def mint(self, session: Session, *, lifetime: timedelta, delegation: str) -> IssuedToken:
        """One more access token under a living session, which it does not outlive.

        Raises `LoginRefused` if the session is not alive. Who may ask for that how often is up to the caller.
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
    """*session*, which has ended by *until* at the latest. Raises `LoginRefused` if that is before it begins."""
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
