"""The page of all sessions, including API tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.store_capabilities import ListedSession, PagesSessions
from ostiary_gateway.interfaces.token_store import Session, SessionKind, TokenStore
from ostiary_gateway.login.admin.searches import SESSION_FIELDS, SessionSearch, read_values
from ostiary_gateway.login.admin.tables import SESSIONS, AdminFrame, moment_cell, moment_text, pager, shown, table
from ostiary_gateway.login.browser_session import Visitor
from ostiary_gateway.login.pages.markup import NOTHING, Markup, join
from ostiary_gateway.login.pages.messages import counted, say
from ostiary_gateway.login.pages.pieces import problem_note
from ostiary_gateway.login.pages.templates import fill
from ostiary_gateway.login.pages.views import client_of
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import only

# The store filters by user, group and kind. Other filters are applied here, to a limited number of sessions per page; a
# page that reached the limit says so and continues from there.

AT_ONCE = 200
MOST_LOOKED_AT = 2000
# Limit for a store without paging.
MOST_OF_ONE_LIST = 1000


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A page of sessions. `after` is the cursor of the next page, empty for the last one.

    `is_cut`: the search stopped at the limit and continues at `after`. `is_newest_only`: the store has more sessions,
    which it cannot list.
    """

    sessions: Sequence[Session]
    after: str = ""
    is_cut: bool = False
    is_newest_only: bool = False


class SessionLists:
    """Pages of sessions that match a search."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        self._paging = ability(store, PagesSessions)

    async def find(self, search: SessionSearch, *, after: str = "", limit: int) -> SessionPage:
        """Return one page of matching sessions. Raises `ValueError` if *after* is not a cursor."""
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
                    # Newest first: all that follow are older.
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


ON_A_PAGE = 50
_COLUMNS = (
    *("admin.user", "admin.client", "admin.kind", "admin.since", "admin.until", "admin.last_used"),
    *("admin.provider", "admin.groups", "admin.action"),
)
_KINDS = {
    SessionKind.SIGN_IN: "admin.kind_sign_in",
    SessionKind.EXCHANGE: "admin.kind_exchange",
    SessionKind.API_TOKEN: "admin.kind_api_token",
}


async def sessions_page(lists: SessionLists, request: LoginRequest, frame: AdminFrame) -> LoginAnswer:
    values: dict[str, str] = {}
    page, problem, after = SessionPage(()), "", only(request.query, "after") or ""
    try:
        values = read_values(request, SESSION_FIELDS)
        page = await lists.find(SessionSearch(values), after=after, limit=ON_A_PAGE)
    except ValueError as error:
        problem = str(error)
    rows = [_row(session, frame.visitor) for session in page.sessions]
    body = fill(
        "admin/sessions.html",
        problem=problem_note(problem),
        search=_search_form(values),
        notes=_notes(page),
        table=table(counted("admin.session_count", len(rows)), _COLUMNS, rows),
        pager=pager(SESSIONS, values, after=after, next_after=page.after),
    )
    return frame.page(SESSIONS, body, status=400 if problem else 200)


def _row(session: Session, visitor: Visitor) -> Sequence[str]:
    client = client_of(session)
    here = fill("tag.html", text=say("sessions.here")) if session.id == visitor.session.id else NOTHING
    user, since = shown(session.user.username), moment_text(session.created_at)
    return (
        user,
        fill("admin/with_tag.html", text=client, tag=here),
        say(_KINDS[session.kind]),
        moment_cell(session.created_at),
        moment_cell(session.expires_at),
        moment_cell(session.last_used_at),
        shown(session.provider),
        shown(", ".join(session.user.groups)),
        fill(
            "admin/end_session.html",
            form_token=visitor.form_token,
            id=session.id,
            client=client,
            user=user,
            since=since,
        ),
    )


def _search_form(values: dict[str, str]) -> Markup:
    kind = values.get("kind", "")
    options = join(
        fill("admin/option.html", value=each.value, text=say(text), selected=_selected(each.value == kind))
        for each, text in _KINDS.items()
    )
    fields = {f"{name}": values.get(name, "") for name in SESSION_FIELDS if name != "kind"}
    return fill("admin/search_sessions.html", kinds=options, open=_open(bool(values)), **fields)


def _notes(page: SessionPage) -> Markup:
    if page.is_cut:
        return fill("note.html", kind="plain", text=say("admin.search_cut"))
    return fill("note.html", kind="plain", text=say("admin.newest_only")) if page.is_newest_only else NOTHING


def _selected(is_selected: bool) -> Markup:
    return Markup(" selected") if is_selected else NOTHING


def _open(is_open: bool) -> Markup:
    return Markup(" open") if is_open else NOTHING
