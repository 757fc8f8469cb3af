"""Token stores: what a token's digest stands for. A store never sees a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol, runtime_checkable

from ostiary.model import UserInfo


class SessionKind(Enum):
    """What a session began with. Those of one kind are counted and listed apart from the others."""

    SIGN_IN = "sign-in"
    EXCHANGE = "exchange"  # a program showed a proof of its own, and got one token for it
    API_TOKEN = "api-token"  # noqa: S105  # one token that somebody made and named


@dataclass(frozen=True, slots=True)
class Session:
    """One sign-in of one user, or one token of a program. Tokens are issued under it; when it ends, they all do.

    `sources` tells for each group how it is known. `client` is a short text that helps a person to recognise it.
    `sequence` is the number of the last revocation when it began: only later revocations can end it. Times cannot say
    which of the two came first, because clocks step back. None until a store has given it one. `name` is that of an API
    token, and empty for every other kind. `last_used_at` is what `note_use` wrote down last.
    """

    id: str
    user: UserInfo
    provider: str
    created_at: datetime
    expires_at: datetime
    sources: tuple[tuple[str, str], ...] = ()
    client: str = ""
    sequence: int | None = field(default=None, compare=False)
    # What its identity provider keeps for it (a refresh token, say), sealed with a secret of the client's.
    sealed: str = field(default="", repr=False)
    kind: SessionKind = SessionKind.SIGN_IN
    name: str = ""
    last_used_at: datetime | None = field(default=None, compare=False)
    # Digests that name the sign-in at the identity system that it came from: see `OriginStore`.
    origins: tuple[str, ...] = ()
    # What ends that sign-in there, sealed with the secret of the browser; empty for every other session.
    sealed_hint: str = field(default="", repr=False)


class TokenKind(Enum):
    ACCESS = "access"
    RENEWAL = "renewal"
    SPENT = "spent"  # a renewal token that was used; kept, so that its second use is noticed
    BROWSER = "browser"  # in a cookie, for the gateway's own pages; it opens nothing else
    APPLICATION = "application"  # in a cookie, for one web application; it opens nothing else


# How long the text `TokenRecord.delegation` is at most, in bytes.
LARGEST_DELEGATION = 16 * 1024


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is kept of a token: its digest, and never itself. Of a spent one, `issued_at` tells when it was used.

    `delegation` is what makes an access token less than its session; it means nothing to the store. Only access tokens
    have one.
    """

    digest: bytes = field(repr=False)
    session_id: str
    issued_at: datetime
    expires_at: datetime
    kind: TokenKind = TokenKind.ACCESS
    delegation: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    token: TokenRecord
    session: Session


class RevocationKind(Enum):
    TOKEN = "token"  # noqa: S105  # the value is the digest, in hex
    SESSION = "session"
    USER = "user"
    GROUP = "group"
    ORIGIN = "origin"  # sessions with this digest among their `origins`
    BEFORE = "before"  # everything, or everything that began before `at`; the value is empty


@dataclass(frozen=True, slots=True)
class Revocation:
    """Withdraws what it names, if that began before it: a user who signs in afterwards has a new, valid session.

    TOKEN ends one token, the others end whole sessions. "Before" is a matter of `sequence`, the number that the store
    gives each revocation as it writes it down. With `at`, only sessions that began at that time or earlier end.
    `recorded_at` is when the store wrote it down. `ostiary_gateway.sessions.ends` is this in code.

    `owner` is the user whose token or session it is, and empty where the caller did not know, or the kind says it. It
    decides nothing about what ends: whoever has to keep a short list can sum up the revocations of one user by it.
    """

    kind: RevocationKind
    value: str
    at: datetime | None = None
    by: str = ""
    sequence: int = 0
    recorded_at: datetime | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class RevocationBatch:
    """The revocations after some number, up to `head`, the last one there is.

    If `complete` is False, some are no longer known, or times were corrected: a reader must drop what it has
    cached.
    """

    head: int
    revocations: tuple[Revocation, ...] = ()
    complete: bool = True


class TokenStore(Protocol):
    """Keeps sessions and the digests of their tokens.

    What `add`, `add_tokens` and `revoke` acknowledge by returning survives a crash, if the store is durable at all. A
    token is gone the moment it expires, or its session does, whether or not `sweep` has run; it stays gone when the
    clock steps back. Names are kept exactly; what is no UTF-8 text is refused with a `ValueError`. When nothing can be
    read or written, raise `ProviderError` with the code token-store-unavailable. One instance serves one event loop;
    several processes may share what lies beneath.
    """

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        """Store or replace the session, and add tokens under it, both or neither.

        A session without a `sequence` gets that of the last revocation that was written down before it began. If a
        later revocation covers the session, or may have and is no longer known, raise `LoginRefused`. To know, keep
        revocations for an hour.
        """

    async def add_tokens(self, session_id: str, tokens: Sequence[TokenRecord]) -> bool:
        """Add tokens under a living session, which stays as it is, all or none.

        False, and nothing changes, if the session is not alive: a revocation that covers it has ended it.
        """

    async def renew(
        self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord], since: int | None = None
    ) -> bool:
        """Spend a renewal token, replace its session and add tokens, all in one step, at most once per token.

        Returns False, and changes nothing, if *spent* is no living renewal token of this session, or if a revocation
        after the number *since* (without it: after *at*) covers the session as it is now. If the session's user is no
        longer the same, its older access tokens are revoked too, with the user as `owner`: nobody keeps a group that
        was taken away.
        """

    async def find(self, digest: bytes) -> Found | None:
        """The token, of whatever kind, and its session, if both are alive."""

    async def session(self, session_id: str) -> Session | None: ...

    async def sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        limit: int = 1000,
    ) -> list[Session]:
        """Living sessions, the newest first."""

    async def count_sessions(self, username: str, kind: SessionKind) -> int:
        """How many living sessions of this kind the user has."""

    async def note_use(self, used: Mapping[str, datetime]) -> None:
        """Write down when sessions, given by id, were last used. An earlier time than is known changes nothing.

        Those that are not alive are passed over. This need not survive a crash.
        """

    async def revoke(self, revocation: Revocation) -> int:
        """Withdraw; returns how many tokens (for TOKEN) or sessions ended. None left to end is no mistake.

        The revocation gets its number in the same transaction. A time that lies ahead by more than a minute is
        refused with a `ValueError`.
        """

    async def marks(self) -> list[Revocation]:
        """The revocations that are kept and still refuse sign-ins that began before them, the newest first."""

    async def undo(self, sequence: int) -> bool:
        """Take back the mark with this number: sign-ins under way are no longer refused because of it.

        What has ended stays ended. False if no such mark is kept.
        """

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        """The revocations with larger numbers, in order. With None, only the head."""

    async def wait_for_revocations(self, after: int, seconds: float) -> None:
        """Return when the head may be another than *after*, and after *seconds* at the latest.

        This only wakes the caller up, and may do so for nothing. What is true says `revocations_after`.
        """

    async def heartbeat(self) -> None:
        """Write down the time, which also tells whether the store can be written. The gateway calls it regularly.

        If the clock has been set back since the last time, what has expired is deleted and all other times are set
        back by as much, so that everything lives as long as it was meant to.
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


@runtime_checkable
class RecordStore(Protocol):
    """A token store that also keeps what logins under way must remember, so that any worker can finish them.

    A record is found by the digest of a secret that only the client has; what is in it means nothing to the store. It
    is gone the moment it expires. The latest `MOST_RECORDS` are kept, and older ones are dropped: a client that begins
    a million logins can at worst end other logins under way. Records need not survive a crash. A gateway whose store
    has no records keeps them in the memory of each worker.
    """

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        """Keep *data*; False, and nothing changes, if a living record has this key.

        More than `LARGEST_RECORD` bytes are refused with a `ValueError`.
        """

    async def find_record(self, key_digest: bytes) -> bytes | None:
        """What is kept under this key, which stays there."""

    async def take_record(self, key_digest: bytes) -> bytes | None:
        """What is kept under this key, removed: of concurrent callers, exactly one gets it."""


@runtime_checkable
class OriginStore(Protocol):
    """A token store that keeps `Session.origins`, and ends sessions by them (`RevocationKind.ORIGIN`).

    An identity system that ends a sign-in names it as it knows it; the gateway makes a digest of that. A gateway whose
    store cannot do this refuses such logouts, with an error that the identity system sees.
    """

    async def sessions_from(self, origin: str, *, limit: int = 1000) -> list[Session]:
        """Living sessions with *origin* among their origins, the newest first."""


@runtime_checkable
class KeptInFile(Protocol):
    """A token store whose sessions lie in one file, at `path`.

    ``ostiary-gateway sessions`` and ``ostiary revoke`` open a store only if its file exists: opening it would create an
    empty one, which might then belong to another user than the gateway's. A reload that names another file needs a
    restart.
    """

    path: str


@runtime_checkable
class SharedBetweenProcesses(Protocol):
    """A trait: what one process writes, every other process with the same settings reads at once.

    Of a token store: a gateway with several workers needs it, and so do commands that open the store of a running
    gateway. A store without it is taken for one in the memory of a single process: with several workers the start is
    refused.

    Of a provider that serves resources (`ostiary_gateway.interfaces.resources.ServesResources`): several workers, and
    replicas that share a token store, need it. Else one of them would not know what was created at another.
    """

    shared_between_processes: bool


@runtime_checkable
class SurvivesRestart(Protocol):
    """A trait: what the store has acknowledged is there again after a restart of the gateway, and after a crash.

    Of a store without it we assume that a restart ends all sessions, and warn of that at every start.
    """

    survives_restart: bool
