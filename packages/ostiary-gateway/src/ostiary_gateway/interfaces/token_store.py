"""Token stores: sessions and the digests of their tokens. A store never sees a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol, runtime_checkable

from ostiary.model import UserInfo


class SessionKind(Enum):
    """How a session began. Each kind is counted and listed separately."""

    SIGN_IN = "sign-in"
    EXCHANGE = "exchange"  # a workload exchanged its proof for one token
    API_TOKEN = "api-token"  # noqa: S105  # one token that a user created and named


@dataclass(frozen=True, slots=True)
class Session:
    """One sign-in of a user, or one token of a workload. Its tokens end with it.

    `sources` gives the source of each group. `client` is a short text by which a user recognizes the session.
    `sequence` is the number of the last revocation when it began: only later revocations can end it. Times cannot
    provide this order, because clocks step back. None until a store has assigned one. `name` is that of an API token,
    and empty for every other kind. `last_used_at` is set by `note_use`.
    """

    id: str
    user: UserInfo
    provider: str
    created_at: datetime
    expires_at: datetime
    sources: tuple[tuple[str, str], ...] = ()
    client: str = ""
    sequence: int | None = field(default=None, compare=False)
    # State of its identity provider (such as a refresh token), sealed with a secret of the client.
    sealed: str = field(default="", repr=False)
    kind: SessionKind = SessionKind.SIGN_IN
    name: str = ""
    last_used_at: datetime | None = field(default=None, compare=False)
    # Digests of the IdP's identifiers of the sign-in that it came from: see `OriginStore`.
    origins: tuple[str, ...] = ()
    # What ends that sign-in at the IdP, sealed with the secret of the browser; empty for every other session.
    sealed_hint: str = field(default="", repr=False)


class TokenKind(Enum):
    ACCESS = "access"
    RENEWAL = "renewal"
    SPENT = "spent"  # a used refresh token; stored to detect its reuse
    BROWSER = "browser"  # in a cookie, valid for the gateway's own pages only
    APPLICATION = "application"  # in a cookie, valid for one web application only


# Maximum length of `TokenRecord.delegation` in bytes.
LARGEST_DELEGATION = 16 * 1024


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A stored token: its digest, never the token itself. Of a used one, `issued_at` is when it was used.

    `delegation` restricts a scoped access token, and is opaque to the store. Only access tokens have one.
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
    """Revoke what it names, if that began before it: a user who signs in afterwards has a new, valid session.

    TOKEN ends one token, the others end whole sessions. "Before" is defined by `sequence`, the number that the store
    assigns to each revocation when it records it. With `at`, only sessions that began at that time or earlier end.
    `recorded_at` is when the store recorded it. `ostiary_gateway.sessions.ends` implements this.

    `owner` is the user of the token or session; empty if the caller does not know it, or the kind implies it. It does
    not affect what ends: readers with a limited list use it to merge the revocations of one user.
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

    If `complete` is False, some were deleted already, or times were corrected: a reader must drop its cache.
    """

    head: int
    revocations: tuple[Revocation, ...] = ()
    complete: bool = True


class TokenStore(Protocol):
    """Store sessions and the digests of their tokens.

    What `add`, `add_tokens` and `revoke` acknowledge by returning survives a crash, if the store is durable at all. A
    token is invalid the moment it or its session expires, whether or not `sweep` has run; it stays invalid when the
    clock steps back. Names are stored exactly; invalid UTF-8 raises `ValueError`. If the store cannot be read or
    written, raise `ProviderError` with the code token-store-unavailable. One instance serves one event loop; several
    processes may share the underlying storage.
    """

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        """Store or replace the session, and add tokens under it, atomically.

        A session without a `sequence` gets that of the last revocation recorded before it began. If a later revocation
        covers the session, or may have and was deleted already, raise `LoginRefused`. For this check, store revocations
        for an hour.
        """

    async def add_tokens(self, session_id: str, tokens: Sequence[TokenRecord]) -> bool:
        """Add tokens under an active session, which does not change, atomically.

        Returns False without a change if the session is not active: a revocation that covers it has ended it.
        """

    async def renew(
        self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord], since: int | None = None
    ) -> bool:
        """Use a refresh token, replace its session and add tokens, atomically and at most once per token.

        Returns False without a change if *spent* is no active refresh token of this session, or if a revocation after
        the number *since* (without it: after *at*) covers the session as it is now. If the user of the session has
        changed, its older access tokens are revoked too, with the user as `owner`: no token retains a group that was
        removed.
        """

    async def find(self, digest: bytes) -> Found | None:
        """Return the token, of any kind, and its session, if both are active."""

    async def session(self, session_id: str) -> Session | None: ...

    async def sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        limit: int = 1000,
    ) -> list[Session]:
        """Return active sessions, the newest first."""

    async def count_sessions(self, username: str, kind: SessionKind) -> int:
        """Return how many active sessions of this kind the user has."""

    async def note_use(self, used: Mapping[str, datetime]) -> None:
        """Record when sessions, given by id, were last used. An earlier time than the recorded one changes nothing.

        Inactive sessions are skipped. This need not survive a crash.
        """

    async def revoke(self, revocation: Revocation) -> int:
        """Revoke; return how many tokens (for TOKEN) or sessions ended. Zero is not an error.

        The revocation gets its number in the same transaction. Raises `ValueError` for a time more than a minute ahead.
        """

    async def marks(self) -> list[Revocation]:
        """Return the stored revocations that still block sign-ins that began before them, the newest first."""

    async def undo(self, sequence: int) -> bool:
        """Lift the active revocation with this number: it no longer blocks logins in progress.

        What has ended stays ended. Returns False if no such revocation is active.
        """

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        """Return the revocations with larger numbers, in order. With None, return only the head."""

    async def wait_for_revocations(self, after: int, seconds: float) -> None:
        """Return when the head may differ from *after*, and after *seconds* at the latest.

        Wakeups may be spurious; `revocations_after` is authoritative.
        """

    async def heartbeat(self) -> None:
        """Record the current time, which also checks that the store is writable. The gateway calls it regularly.

        If the clock has been set back since the last call, what has expired is deleted and all other times are set back
        by as much, so that lifetimes are unchanged.
        """

    async def sweep(self) -> int:
        """Delete what has expired; return the number of deleted tokens."""

    async def count(self) -> int:
        """Return the number of stored tokens, expired and not yet deleted ones included."""

    async def close(self) -> None:
        """Release files and connections. Calling it twice is harmless."""


# Maximum number of records; the oldest are evicted.
MOST_RECORDS = 10_000
LARGEST_RECORD = 64 * 1024


@runtime_checkable
class RecordStore(Protocol):
    """A token store that also stores login transactions, so that any worker can complete them.

    A record is found by the digest of a secret that only the client has; its content is opaque to the store. It is gone
    the moment it expires. The latest `MOST_RECORDS` are stored and older ones evicted: a client that begins a million
    logins can at worst abort other logins in progress. Records need not survive a crash. Without this capability, each
    worker stores records in its memory.
    """

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        """Store *data*. Returns False without a change if an active record has this key.

        Raises `ValueError` for more than `LARGEST_RECORD` bytes.
        """

    async def find_record(self, key_digest: bytes) -> bytes | None:
        """Return the record with this key, and leave it there."""

    async def take_record(self, key_digest: bytes) -> bytes | None:
        """Remove and return the record with this key: of concurrent callers, exactly one gets it."""


@runtime_checkable
class OriginStore(Protocol):
    """A token store that stores `Session.origins`, and ends sessions by them (`RevocationKind.ORIGIN`).

    An origin is a digest of the IdP's own identifier of a sign-in. Without this capability, the gateway rejects logouts
    from an IdP with an error that the IdP sees.
    """

    async def sessions_from(self, origin: str, *, limit: int = 1000) -> list[Session]:
        """Return active sessions with *origin* among their origins, the newest first."""


@runtime_checkable
class KeptInFile(Protocol):
    """A token store whose sessions are in one file, at `path`.

    ``ostiary-gateway sessions`` and ``ostiary revoke`` open a store only if its file exists: opening it would create an
    empty one, which might then belong to another user than the gateway's. Changing the file requires a restart.
    """

    path: str


@runtime_checkable
class SharedBetweenProcesses(Protocol):
    """Declares that what one process writes is immediately visible to every other process with the same settings.

    For a token store: required by a gateway with several workers, and by commands that open the store of a running
    gateway. A store without it is assumed to be in the memory of a single process, and the gateway does not start with
    several workers.

    For a provider that serves resources (`ostiary_gateway.interfaces.resources.ServesResources`): required by several
    workers, and by replicas that share a token store. Otherwise one of them would not see what another created.
    """

    shared_between_processes: bool


@runtime_checkable
class SurvivesRestart(Protocol):
    """Declares that acknowledged writes survive a restart of the gateway, and a crash.

    Otherwise a restart is assumed to end all sessions, and the gateway warns about that at every start.
    """

    survives_restart: bool
