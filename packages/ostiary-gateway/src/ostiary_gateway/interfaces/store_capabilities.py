"""What a token store may be able to besides `ostiary_gateway.interfaces.token_store.TokenStore`: one ability per file.

stored_objects   keep small named objects: service accounts, signing keys
moving           give out all it holds, and take it in: moved to another store, backed up, restored
examining        say how it is, and who else uses it
replicas         serve gateways on several machines: notes, counts, and whose store it is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar, runtime_checkable

from ostiary_gateway.interfaces.shared_counts import Change, State
from ostiary_gateway.interfaces.token_store import Revocation, Session, SessionKind, TokenRecord

# Token stores that can say how they are, and who else uses them.


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a store says of itself.

    `facts` are names and short texts for people: which server, which version of the schema. `problems` are mistakes in
    what is stored. `time` is the time of day where expiry is judged, if that is not this process.
    """

    facts: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    time: datetime | None = None


@runtime_checkable
class ExaminesStore(Protocol):
    """A token store for ``ostiary-gateway store check``, and for ``store migrate``, which must not run beside a
    gateway.
    """

    async def examine(self) -> StoreReport:
        """Look at everything that is stored; this may take a while. Changes nothing.

        Raises `ProviderError` if the store cannot be asked.
        """

    async def others_using(self) -> tuple[str, ...]:
        """Who else has it open now, a short text for each. Empty if nobody has, or if that cannot be told."""


# Token stores whose contents can be moved to another one, and so be backed up and restored.


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session with all of its tokens that have not expired, the spent ones included, in any order."""

    session: Session
    tokens: tuple[TokenRecord, ...]


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The log of revocations: the last number, up to which number they are no longer known, and those that are kept.

    The kept ones are in the order of their numbers, each with its number and the time when it was recorded. `undone`
    are the numbers of those that no longer refuse sign-ins.
    """

    head: int
    forgotten: int
    revocations: tuple[Revocation, ...] = ()
    undone: frozenset[int] = frozenset()


@runtime_checkable
class PortableStore(Protocol):
    """A token store that can be read and filled as a whole: ``ostiary-gateway store migrate``.

    Times are those of the clock that the machine has. What is exported while somebody writes may be half old and half
    new: stop the gateways, or export again.
    """

    async def export_log(self) -> StoredLog: ...

    async def export_sessions(self, after: str, limit: int) -> list[StoredSession]:
        """The living sessions with larger ids than *after*, by id, at most *limit*, each with its `sequence`.

        Ids are in the order of their code points, which is also that of their UTF-8 bytes, in whatever language.
        """

    async def import_log(self, log: StoredLog) -> None:
        """Replace the log by this one. Raises `ProviderError` if the store's own is further: it is in use."""

    async def import_sessions(self, sessions: Sequence[StoredSession]) -> None:
        """Store or replace sessions with exactly these tokens and this `sequence`; durable when this returns.

        No revocation is asked: the store that they come from has done that. One that has expired is stored or replaced
        too, so that it ends: nothing finds it any more.
        """


# What a token store may keep for the replicas of a gateway beside tokens: notes, counts, and whose store it is.
#
# A replica is one gateway process, or a supervisor with its workers, on a machine of its own. All replicas share one
# token store. A store that only the processes of one machine share needs nothing of this.

T = TypeVar("T")

# How many notes a store keeps of each topic; the oldest make room for new ones.
MOST_NOTES = 10_000
LARGEST_NOTE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Note:
    key: str
    data: bytes = field(repr=False)
    written_at: datetime


@runtime_checkable
class NoteStore(Protocol):
    """A token store that also keeps what replicas write down for each other: which there are, what they refused.

    A note belongs to a topic and has a key; what is in it means nothing to the store. It is gone the moment its time is
    over. The latest `MOST_NOTES` of a topic are kept. Notes need not survive a crash of the store.
    """

    async def put_notes(self, topic: str, notes: Mapping[str, bytes], *, seconds: float) -> None:
        """Keep each note for *seconds* under its key, in place of an older one with that key.

        More than `LARGEST_NOTE` bytes are refused with a `ValueError`, and then nothing is kept.
        """

    async def find_note(self, topic: str, key: str) -> Note | None: ...

    async def latest_notes(self, topic: str, limit: int) -> list[Note]:
        """The notes that were written last, the newest first."""

    async def remove_note(self, topic: str, key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Counted(Generic[T]):
    """What a change has made of a state: the state, for how many seconds it matters, and the result for the caller.

    `now` is the time that the change was given, in seconds, by the clock of the store.
    """

    state: State
    seconds: float
    result: T
    now: float


@runtime_checkable
class CountStore(Protocol):
    """A token store that also keeps counts for all replicas: see `ostiary_gateway.interfaces.shared_counts`.

    Counts need not survive a crash of the store.
    """

    async def update_counts(
        self, changes: Sequence[tuple[str, Change[T]]], *, wide: bool = False
    ) -> list[Counted[T] | None]:
        """Replace the state of each key by what its change makes of it; nobody else's change is lost.

        The keys are different. An exception of a change is passed on, and then nothing is changed. The answer is None
        for a new wide state for which there is no room.
        """


@runtime_checkable
class OwnedStore(Protocol):
    """A token store that knows which gateway it belongs to.

    Two gateways with different policies that share a store by mistake would accept each other's tokens.
    """

    async def claim(self, owner: str, *, anew: bool = False) -> str:
        """Whose store it is: *owner*'s, if it is nobody's yet or with *anew*; else it stays that of the first one."""


# Token stores that list their sessions page by page, however many there are.


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session, and its `place` in the list: the store's own text, which means something to that store only."""

    session: Session
    place: str


@runtime_checkable
class PagesSessions(Protocol):
    """A token store whose list of sessions can be continued. Of a store without it, only the newest are shown."""

    async def page_sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        after: str = "",
        limit: int = 100,
    ) -> Sequence[ListedSession]:
        """Living sessions, the newest first: the first *limit* of them, or of those behind the place *after*.

        Who reads page after page gets each session that was there all the time exactly once, whatever begins or ends
        meanwhile; also if the session at *after* has ended. Sessions of the same moment have an order, too. A clock
        that is set back meanwhile may move the places.

        *after* comes from a URL: raise `ValueError` for a text that is no place of this store.
        """


# Small durable named objects in a token store: service accounts, signing keys, and what else needs a place.

# How many bytes an object has at most, and how many of one kind a store keeps.
LARGEST_OBJECT = 64 * 1024
MOST_OBJECTS = 100_000
# A kind is a short word of ours; a name may be anybody's, in bytes of UTF-8.
LONGEST_KIND = 64
LONGEST_NAME = 1024


@dataclass(frozen=True, slots=True)
class StoredObject:
    """`version` is another one after every change. `changed_at` is when this store wrote it down."""

    kind: str
    name: str
    data: bytes = field(repr=False)
    version: int
    changed_at: datetime


@runtime_checkable
class ObjectStore(Protocol):
    """A token store that also keeps objects, until somebody deletes them.

    What is in one means nothing to the store. A kind is a short lower-case word with hyphens. A name is any text but
    the empty one, and is kept exactly. A change that is acknowledged survives what an acknowledged session survives. No
    version is used twice, not even after an object was deleted. What is no such kind, name or object is refused with a
    `ValueError`; a kind that is full, with a `ProviderError` of the code token-store-full.
    """

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        """Store or replace it if it has this *version* now: 0 if it must not exist yet, None for whatever is there.

        Returns the new version; None, and nothing changes, if another version is there.
        """

    async def find_object(self, kind: str, name: str) -> StoredObject | None: ...

    async def list_objects(self, kind: str, *, after: str = "", limit: int = 1000) -> list[StoredObject]:
        """Those with larger names than *after*, by name in the order of code points, at most *limit*."""

    async def delete_object(self, kind: str, name: str, *, version: int | None = None) -> bool:
        """Delete it if it has this *version*, or whatever version with None. False if there is none such."""

    async def object_kinds(self) -> list[str]:
        """The kinds of which there are objects, in order."""


@runtime_checkable
class CountsStoredObjects(Protocol):
    """An `ObjectStore` that counts objects by the beginning of their names, without reading them.

    The gateway begins the names of what one user can cause with a digest of the user, and limits how many there are.
    In a store without this ability such objects are limited for all users together (`MOST_OBJECTS`) only.
    """

    async def count_objects(self, kind: str, prefix: str) -> int:
        """How many objects of *kind* have names that begin with *prefix*."""
