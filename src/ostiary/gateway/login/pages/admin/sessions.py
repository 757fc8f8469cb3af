"""The page of all sessions, API tokens included, and ending one of them.

Called by the administration area, which has asked the policy before.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.admin.frame import SESSIONS, AdminFrame
from ostiary.gateway.login.pages.admin.listing.searches import SESSION_FIELDS, SessionSearch, read_values
from ostiary.gateway.login.pages.admin.listing.session_lists import SessionLists, SessionPage
from ostiary.gateway.login.pages.admin.listing.texts import moment_text, shown
from ostiary.gateway.login.pages.admin.tables import moment_cell, pager, table
from ostiary.gateway.login.pages.markup import NOTHING, Markup, join
from ostiary.gateway.login.pages.messages import counted, say
from ostiary.gateway.login.pages.pieces import problem_note
from ostiary.gateway.login.pages.templates import fill
from ostiary.gateway.login.pages.views import client_of
from ostiary.gateway.login.sessions.browser import Visitor
from ostiary.gateway.login.visit import only
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import Session, SessionKind

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
