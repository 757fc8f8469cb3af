"""Finds the sessions of a page: by a search, from a place on, and never all at once.

Called by the page of all sessions. The store selects by user, group and kind; the rest is selected
here, among a bounded number of sessions a page. A page that reached this bound says so, and leads on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostiary.core.abilities import ability
from ostiary.gateway.login.pages.admin.listing.searches import SessionSearch
from ostiary.interfaces.store_abilities.session_pages import ListedSession, PagesSessions
from ostiary.interfaces.token_store import Session, TokenStore

AT_ONCE = 200
MOST_LOOKED_AT = 2000
# Of a store that cannot continue its list.
MOST_OF_ONE_LIST = 1000


@dataclass(frozen=True, slots=True)
class SessionPage:
    """`after` is where the next page begins, empty if this is the last. `is_cut`: the search goes on there.

    `is_newest_only`: there are more, which this store cannot list.
    """

    sessions: Sequence[Session]
    after: str = ""
    is_cut: bool = False
    is_newest_only: bool = False


class SessionLists:
    def __init__(self, store: TokenStore) -> None:
        self._store = store
        self._paging = ability(store, PagesSessions)

    async def find(self, search: SessionSearch, *, after: str = "", limit: int) -> SessionPage:
        """Raises `ValueError` if *after* is no place."""
        if self._paging is None:
            return await self._newest(search)
        matches: list[ListedSession] = []
        looked_at, place = 0, after
        while True:
            batch = await self._paging.page_sessions(
                username=search.username, group=search.group, kind=search.kind, after=place, limit=AT_ONCE
            )
            for listed in batch:
                looked_at, place = looked_at + 1, listed.place
                if search.span.is_before(listed.session.created_at):
                    # The newest first: all that follow are older still.
                    return SessionPage(_sessions(matches))
                if search.matches(listed.session):
                    if len(matches) == limit:
                        return SessionPage(_sessions(matches), matches[-1].place)
                    matches.append(listed)
            if len(batch) < AT_ONCE:
                return SessionPage(_sessions(matches))
            if looked_at >= MOST_LOOKED_AT:
                return SessionPage(_sessions(matches), place, is_cut=True)

    async def _newest(self, search: SessionSearch) -> SessionPage:
        sessions = await self._store.sessions(
            username=search.username, group=search.group, kind=search.kind, limit=MOST_OF_ONE_LIST
        )
        matching = [session for session in sessions if search.matches(session)]
        return SessionPage(matching, is_newest_only=len(sessions) == MOST_OF_ONE_LIST)


def _sessions(matches: Sequence[ListedSession]) -> list[Session]:
    return [listed.session for listed in matches]
