"""Token stores whose contents can be moved to another one, and so be backed up and restored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ostiary.interfaces.token_store import Revocation, Session, TokenRecord


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
    """A token store that can be read and filled as a whole: ``ostiary store migrate``.

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
