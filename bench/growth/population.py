"""Sessions and tokens by the million: what they are, worked out from their numbers, so that nothing need be remembered.

Five sessions a user, ten tokens a session, as after a day of sign-ins and renewals. Every session is in a group that
all are in and in one of a hundred sessions; one session in a thousand is of an API token. The first have expired.

`bench.growth.fill` writes them into a store. The digests come in their order, and each belongs to another session than
the one before, so that a table that is kept in the order of digests is written from one end to the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Session, SessionKind, TokenKind, TokenRecord

TOKENS_PER_SESSION, SESSIONS_PER_USER, SESSIONS_PER_TEAM, SESSIONS_PER_API_TOKEN = 10, 5, 100, 1000
EVERYBODY = "staff"
# The kinds of a session's tokens, by their place in it.
KINDS = (TokenKind.ACCESS, TokenKind.RENEWAL, *[TokenKind.SPENT] * (TOKENS_PER_SESSION - 2))
_SPAN, _LIFETIME, _LONG_AGO = timedelta(hours=12), timedelta(hours=24), timedelta(minutes=1)
# A prime: the number of sessions is a power of ten, so that each number is met once before one comes again.
_STRIDE = 7_368_787
_DIGEST_BITS = 256


@dataclass(frozen=True, slots=True)
class Population:
    """*tokens* of them, of which *expired* have expired by *now*. Both are multiples of `TOKENS_PER_SESSION`."""

    tokens: int
    expired: int
    now: datetime

    @property
    def sessions(self) -> int:
        return self.tokens // TOKENS_PER_SESSION

    @property
    def expired_sessions(self) -> int:
        return self.expired // TOKENS_PER_SESSION

    def session(self, number: int) -> Session:
        created_at = self.now - _SPAN + _SPAN * number / self.sessions
        expires_at = self.now - _LONG_AGO if number < self.expired_sessions else created_at + _LIFETIME
        is_api_token = number % SESSIONS_PER_API_TOKEN == SESSIONS_PER_API_TOKEN - 1
        groups = (EVERYBODY, team_of(number))
        return Session(
            f"{number:022d}",
            UserInfo(user_of(number), f"{number // SESSIONS_PER_USER:032x}", groups),
            "staff",
            min(created_at, expires_at - _LONG_AGO),
            expires_at,
            tuple((group, "file") for group in groups),
            "kubectl",
            sequence=0,
            kind=SessionKind.API_TOKEN if is_api_token else SessionKind.SIGN_IN,
            name="backup" if is_api_token else "",
        )

    def tokens_of(self, number: int) -> list[TokenRecord]:
        session = self.session(number)
        return [
            TokenRecord(self.digest(number, place), session.id, session.created_at, session.expires_at, kind)
            for place, kind in enumerate(KINDS)
        ]

    def digest(self, session: int, place: int) -> bytes:
        """Of the token at *place* in a session."""
        return self._digest(place * self.sessions + session * pow(_STRIDE, -1, self.sessions) % self.sessions)

    def digests(self) -> Iterator[tuple[bytes, int, int]]:
        """All of them, in their order, each with the number of its session and its place there."""
        for place in range(TOKENS_PER_SESSION):
            for number in range(self.sessions):
                yield self._digest(place * self.sessions + number), number * _STRIDE % self.sessions, place

    def _digest(self, rank: int) -> bytes:
        return ((rank << _DIGEST_BITS) // self.tokens + rank % 251).to_bytes(_DIGEST_BITS // 8, "big")


def user_of(session: int) -> str:
    return f"user-{session // SESSIONS_PER_USER}@example.com"


def team_of(session: int) -> str:
    return f"team-{session // SESSIONS_PER_TEAM}"


def population(tokens: int, expired: int) -> Population:
    return Population(tokens, expired, datetime.now(UTC))
