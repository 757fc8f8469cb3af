"""Token stores: what a token's digest stands for. A store never sees a token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from ostiary.model import UserInfo


@dataclass(frozen=True, slots=True)
class Session:
    """One sign-in of one user. Tokens are issued under it; when it ends, they all do.

    `sources` tells for each group how it is known. `client` is a short text that helps a person to recognise it.
    """

    id: str
    user: UserInfo
    provider: str
    created_at: datetime
    expires_at: datetime
    sources: tuple[tuple[str, str], ...] = ()
    client: str = ""


class TokenKind(Enum):
    ACCESS = "access"
    RENEWAL = "renewal"
    SPENT = "spent"  # a renewal token that was used; kept, so that its second use is noticed
    BROWSER = "browser"  # in a cookie, for the gateway's own pages; it opens nothing else


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is kept of a token: its digest, and never itself. Of a spent one, `issued_at` tells when it was used."""

    digest: bytes = field(repr=False)
    session_id: str
    issued_at: datetime
    expires_at: datetime
    kind: TokenKind = TokenKind.ACCESS


@dataclass(frozen=True, slots=True)
class Found:
    token: TokenRecord
    session: Session


class RevocationKind(Enum):
    TOKEN = "token"  # noqa: S105  # the value is the digest, in hex
    SESSION = "session"
    USER = "user"
    GROUP = "group"
    BEFORE = "before"  # everything that began before `at`; the value is empty


@dataclass(frozen=True, slots=True)
class Revocation:
    """Withdraws what it names, as far as it began at `at` or before: who signs in afterwards is in again.

    TOKEN ends one token, the others end whole sessions. Tokens and sessions never begin twice, so `at` matters to
    USER, GROUP and BEFORE only. If it lies ahead, it holds until then. `ostiary.core.tokens.ends` is this in code.
    """

    kind: RevocationKind
    value: str
    at: datetime
    by: str = ""


class TokenStore(Protocol):
    """Keeps sessions and the digests of their tokens.

    What `add` and `revoke` acknowledge by returning survives a crash, if the store is durable at all. A token is
    gone the moment it expires, or its session does, whether or not `sweep` has run. Names are kept exactly; what is
    no UTF-8 text is refused with a `ValueError`. When nothing can be read or written, raise `ProviderError` with the
    code token-store-unavailable. One instance serves one event loop; several processes may share what lies beneath.
    """

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        """Store or replace the session, and add tokens under it, both or neither.

        A revocation that covers the session wins, also when it was quicker than the session it is about: then
        raise `LoginRefused`. To know, keep revocations for an hour, and those whose `at` lies ahead until then.
        """

    async def renew(self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord]) -> bool:
        """Spend a renewal token, replace its session and add tokens, all in one step, at most once per token.

        Returns False, and changes nothing, if *spent* is no living renewal token of this session, or if a
        revocation covers the session as though it began *at*. If the session's user is no longer the same, its
        older access tokens are revoked too: nobody keeps a group that was taken away.
        """

    async def find(self, digest: bytes) -> Found | None:
        """The token, of whatever kind, and its session, if both are alive."""

    async def session(self, session_id: str) -> Session | None: ...

    async def sessions(
        self, *, username: str | None = None, group: str | None = None, limit: int = 1000
    ) -> list[Session]:
        """Living sessions, the newest first."""

    async def revoke(self, revocation: Revocation) -> int:
        """Withdraw; returns how many tokens (for TOKEN) or sessions ended. None left to end is no mistake."""

    def revocations(self) -> AsyncIterator[Revocation]:
        """Every revocation from the call on, whoever made it, as soon as it is known here.

        If some may have been missed (a lost connection), the store yields a BEFORE with the present time: the
        caller then trusts nothing it remembers and asks again.
        """

    async def sweep(self) -> int:
        """Delete what has expired; returns how many tokens."""

    async def count(self) -> int:
        """How many tokens are kept, the expired and not yet swept ones included."""

    async def close(self) -> None:
        """Let go of files and connections. Calling it twice is harmless."""


# How many records a store keeps; the oldest make room for new ones.
MOST_RECORDS = 10_000
LARGEST_RECORD = 64 * 1024


class RecordStore(Protocol):
    """A token store that also keeps what logins under way must remember, so that any worker can finish them.

    A record is found by the digest of a secret that only the client has; what is in it means nothing to the store. It
    is gone the moment it expires. The latest `MOST_RECORDS` are kept, and older ones make room: who begins a million
    logins pushes out other logins under way at worst. Records need not survive a crash. A gateway whose store is none
    of these keeps them in the memory of each worker.
    """

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        """Keep *data*; False, and nothing changes, if a living record has this key.

        More than `LARGEST_RECORD` bytes are refused with a `ValueError`.
        """

    async def find_record(self, key_digest: bytes) -> bytes | None:
        """What is kept under this key, which stays there."""

    async def take_record(self, key_digest: bytes) -> bytes | None:
        """What is kept under this key, and nobody else gets it: of many who take it at once, one does."""
