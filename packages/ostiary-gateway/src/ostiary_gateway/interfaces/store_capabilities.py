"""Optional capabilities of a token store, in addition to `ostiary_gateway.interfaces.token_store.TokenStore`.

Checks, export and import, messages and counts for replicas, paged lists of sessions, and small named objects such as
service accounts and signing keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar, runtime_checkable

from ostiary_gateway.interfaces.shared_counts import Change, State
from ostiary_gateway.interfaces.token_store import Revocation, Session, SessionKind, TokenRecord

# Checks, for the operator.


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The state of a store, as reported to the operator.

    `facts` are names and short texts: the server, the version of the schema. `problems` are errors in the stored data.
    `time` is the clock that decides expiry, if it is not this process's.
    """

    facts: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    time: datetime | None = None


@runtime_checkable
class ExaminesStore(Protocol):
    """A token store that supports ``ostiary-gateway store check`` and ``store migrate``.

    A migration must not run beside a gateway.
    """

    async def examine(self) -> StoreReport:
        """Check all stored data; this may take a while. Changes nothing.

        Raises `ProviderError` if the store is unreachable.
        """

    async def others_using(self) -> tuple[str, ...]:
        """Return a short text for each other process that has it open. Empty if there is none or it is unknown."""


# Export and import: migration, backup and restore.


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session with all its unexpired tokens, used refresh tokens included, in any order."""

    session: Session
    tokens: tuple[TokenRecord, ...]


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The revocation log: the last number, the number up to which entries were deleted, and the remaining entries.

    The entries are in the order of their numbers, each with its number and the time when it was recorded. `undone` are
    the numbers of those that no longer block sign-ins.
    """

    head: int
    forgotten: int
    revocations: tuple[Revocation, ...] = ()
    undone: frozenset[int] = frozenset()


@runtime_checkable
class PortableStore(Protocol):
    """A token store that can be exported and imported as a whole: ``ostiary-gateway store migrate``.

    Times are those of the machine's clock. An export during writes may be inconsistent: stop the gateways, or export
    again.
    """

    async def export_log(self) -> StoredLog: ...

    async def export_sessions(self, after: str, limit: int) -> list[StoredSession]:
        """Return the active sessions with larger ids than *after*, by id, at most *limit*, each with its `sequence`.

        Ids are ordered by code point, which is also the order of their UTF-8 bytes, independent of the locale.
        """

    async def import_log(self, log: StoredLog) -> None:
        """Replace the log by this one. Raises `ProviderError` if the store's own is ahead: it is in use."""

    async def import_sessions(self, sessions: Sequence[StoredSession]) -> None:
        """Store or replace sessions with exactly these tokens and this `sequence`; durable when this returns.

        Revocations are not checked, because the source store has done that. An expired session is written too, so that
        it replaces an active one; it is never returned.
        """


# Storage for the replicas of a gateway: messages, counts, and the owner of the store.
#
# A replica is one gateway process, or a supervisor with its workers, on a machine of its own. All replicas share one
# token store. A store that only the processes of one machine share needs none of this.

T = TypeVar("T")

# Maximum number of messages per topic; the oldest are evicted.
MOST_NOTES = 10_000
LARGEST_NOTE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Note:
    key: str
    data: bytes = field(repr=False)
    written_at: datetime


@runtime_checkable
class NoteStore(Protocol):
    """A token store that also stores short-lived messages between replicas: their presence, recent denials.

    A message has a topic and a key; its content is opaque to the store. It is gone the moment it expires. The latest
    `MOST_NOTES` of a topic are stored. Messages need not survive a crash of the store.
    """

    async def put_notes(self, topic: str, notes: Mapping[str, bytes], *, seconds: float) -> None:
        """Store each message for *seconds* under its key, replacing an older one with that key.

        Raises `ValueError` for a message of more than `LARGEST_NOTE` bytes, and then stores nothing.
        """

    async def find_note(self, topic: str, key: str) -> Note | None: ...

    async def latest_notes(self, topic: str, limit: int) -> list[Note]:
        """Return the messages that were written last, the newest first."""

    async def remove_note(self, topic: str, key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Counted(Generic[T]):
    """The result of a change: the new state, for how many seconds it matters, and the result for the caller.

    `now` is the time that was passed to the change, in seconds, by the clock of the store.
    """

    state: State
    seconds: float
    result: T
    now: float


@runtime_checkable
class CountStore(Protocol):
    """A token store that also stores counts for all replicas: see `ostiary_gateway.interfaces.shared_counts`.

    Counts need not survive a crash of the store.
    """

    async def update_counts(
        self, changes: Sequence[tuple[str, Change[T]]], *, wide: bool = False
    ) -> list[Counted[T] | None]:
        """Apply the change of each key to its state; no concurrent change is lost.

        The keys are distinct. An exception of a change propagates, and then nothing is changed. The result is None for
        a new wide state for which there is no room.
        """


@runtime_checkable
class OwnedStore(Protocol):
    """A token store that records which gateway it belongs to.

    Two gateways with different policies that accidentally share a store would accept each other's tokens.
    """

    async def claim(self, owner: str, *, anew: bool = False) -> str:
        """Set *owner* if there is none yet, or with *anew*; return the owner."""


# Paged lists of sessions.


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session, and its `place` in the list: an opaque cursor of the store."""

    session: Session
    place: str


@runtime_checkable
class PagesSessions(Protocol):
    """A token store with a paged list of sessions. Of a store without it, only the newest are shown."""

    async def page_sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        after: str = "",
        limit: int = 100,
    ) -> Sequence[ListedSession]:
        """Return active sessions, the newest first: the first *limit*, or the first *limit* after the cursor *after*.

        Reading page after page returns each session that existed the whole time exactly once, whatever begins or ends
        meanwhile, also if the session at *after* has ended. Sessions of the same moment have a stable order. Setting
        the clock back meanwhile may shift cursors.

        *after* comes from a URL: raise `ValueError` for a text that is no cursor of this store.
        """


# Small durable named objects: service accounts, signing keys.

# Maximum size of an object in bytes, and maximum number of objects per kind.
LARGEST_OBJECT = 64 * 1024
MOST_OBJECTS = 100_000
# A kind is a short word chosen by the gateway; a name may come from anyone, and is measured in bytes of UTF-8.
LONGEST_KIND = 64
LONGEST_NAME = 1024


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object. `version` differs after every change. `changed_at` is when this store wrote it."""

    kind: str
    name: str
    data: bytes = field(repr=False)
    version: int
    changed_at: datetime


@runtime_checkable
class ObjectStore(Protocol):
    """A token store that also stores objects until they are deleted.

    The content is opaque to the store. A kind is a short lower-case word with hyphens. A name is any nonempty text, and
    is stored exactly. Objects are as durable as sessions. No version is used twice, not even after an object was
    deleted. An invalid kind, name or object raises `ValueError`; a full kind raises `ProviderError` with the code
    token-store-full.
    """

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        """Store or replace an object if *version* is its current one: 0 to create it, None to overwrite any.

        Returns the new version, or None without a change if the current version differs.
        """

    async def find_object(self, kind: str, name: str) -> StoredObject | None: ...

    async def list_objects(self, kind: str, *, after: str = "", limit: int = 1000) -> list[StoredObject]:
        """Return the objects with larger names than *after*, by name in the order of code points, at most *limit*."""

    async def delete_object(self, kind: str, name: str, *, version: int | None = None) -> bool:
        """Delete an object if *version* is None or its current one. Returns False if there is no such object."""

    async def object_kinds(self) -> list[str]:
        """Return the kinds that have objects, in order."""


@runtime_checkable
class CountsStoredObjects(Protocol):
    """An `ObjectStore` that can count objects by a prefix of their names, without reading them.

    The gateway prefixes the names of objects that a user can create with a digest of the user, and limits their number
    per user. In a store without this capability, only the limit for all users together applies (`MOST_OBJECTS`).
    """

    async def count_objects(self, kind: str, prefix: str) -> int:
        """Return how many objects of *kind* have names that begin with *prefix*."""
