"""Token stores that list their sessions page by page, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ostiary.interfaces.token_store import Session, SessionKind


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
