"""What a token store may keep for the replicas of a gateway beside tokens: notes, counts, and whose store it is.

A replica is one gateway process, or a supervisor with its workers, on a machine of its own. All replicas share one
token store. A store that only the processes of one machine share needs nothing of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar, runtime_checkable

from ostiary.interfaces.shared_counts import Change, State

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
    """A token store that also keeps counts for all replicas: see `ostiary.interfaces.shared_counts`.

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
