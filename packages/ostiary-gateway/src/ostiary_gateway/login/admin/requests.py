"""The pages of decisions and of denied requests.

    denied requests   of all workers and replicas, while they are stored
    decisions         allowed ones too, of this machine, while a page watches; a script adds new ones

The caller has checked the permission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import quote

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.login.admin.searches import (
    ALLOWED,
    DENIED,
    REQUEST_FIELDS,
    DecidedRequest,
    RequestSearch,
    describe,
    page_of,
    read_values,
)
from ostiary_gateway.login.admin.tables import (
    DECISIONS,
    REFUSALS,
    AdminFrame,
    cells,
    exact_moment,
    link,
    moment_cell,
    pager,
    shown,
    table,
)
from ostiary_gateway.login.pages.markup import NOTHING, Markup, join
from ostiary_gateway.login.pages.messages import counted, say
from ostiary_gateway.login.pages.pieces import problem_note
from ostiary_gateway.login.pages.templates import fill
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import only

ON_A_PAGE = 50
# Number of requests that these pages list. A worker and the token store have more denied requests, each by its id.
MOST_DECISIONS = 1000
MOST_REFUSALS = 200
OLDEST = "oldest"
_DECISION_COLUMNS = (
    *("admin.at", "admin.decision", "admin.user", "admin.request", "admin.upstream", "admin.why"),
    *("admin.took", "admin.action"),
)
_REFUSAL_COLUMNS = ("admin.at", "admin.user", "admin.request", "admin.upstream", "admin.why", "admin.action")
OUTCOMES = {"allowed": "admin.allowed", "denied": "admin.denied", "hidden": "admin.hidden"}


class RequestListing:
    """Search, order and start of one page of requests."""

    def __init__(self, request: LoginRequest, *, fields: tuple[str, ...] = REQUEST_FIELDS) -> None:
        self.values: dict[str, str] = {}
        self.problem = ""
        self.search: RequestSearch | None = None
        self.after = only(request.query, "after") or ""
        self.is_oldest_first = only(request.query, "order") == OLDEST
        try:
            self.values = read_values(request, fields)
            self.search = RequestSearch(self.values)
        except ValueError as error:
            self.problem = str(error)

    @property
    def order(self) -> dict[str, str]:
        return {"order": OLDEST} if self.is_oldest_first else {}

    def select(self, requests: Sequence[DecidedRequest]) -> list[DecidedRequest]:
        search = self.search
        if search is None:
            return []
        return [each for each in requests if search.matches(each.attributes, each.decision, each.at)]

    def sorted_by(self, address: str) -> Mapping[str, tuple[str, str]]:
        if self.is_oldest_first:
            return {"admin.at": ("ascending", link(address, self.values))}
        return {"admin.at": ("descending", link(address, {**self.values, "order": OLDEST}))}


def refusals_page(listing: RequestListing, requests: Sequence[DecidedRequest], frame: AdminFrame) -> LoginAnswer:
    rows, next_after, count = _page_of(listing, requests)
    body = fill(
        "admin/refusals.html",
        problem=problem_note(listing.problem),
        search=_search_form(REFUSALS, listing.values, outcome=False),
        table=table(
            counted("admin.refusal_count", count),
            _REFUSAL_COLUMNS,
            [_refusal_row(each) for each in rows],
            sorted_by=listing.sorted_by(REFUSALS),
        ),
        pager=_pager(REFUSALS, listing, next_after),
    )
    return frame.page(REFUSALS, body, status=400 if listing.problem else 200)


def decisions_page(
    listing: RequestListing, requests: Sequence[DecidedRequest], frame: AdminFrame, *, now: datetime
) -> LoginAnswer:
    rows, next_after, _ = _page_of(listing, requests)
    # New decisions belong on the first page of a list that starts with the newest.
    is_live = not listing.after and not listing.is_oldest_first and not listing.problem
    stream = link(
        f"{DECISIONS}/stream",
        {**listing.values, "from": exact_moment(now), "key": frame.visitor.stream_key},
    )
    names = [say(column) for column in _DECISION_COLUMNS]
    body = fill(
        "admin/decisions.html",
        problem=problem_note(listing.problem),
        search=_search_form(DECISIONS, listing.values, outcome=True),
        live=fill("admin/live.html", stream=stream, row=_empty_row(names), reload=link(DECISIONS, listing.values))
        if is_live
        else NOTHING,
        table=table(
            say("admin.latest_decisions"),
            _DECISION_COLUMNS,
            [_decision_row(each) for each in rows],
            sorted_by=listing.sorted_by(DECISIONS),
            body_id="decisions",
        ),
        pager=_pager(DECISIONS, listing, next_after),
    )
    return frame.page(DECISIONS, body, status=400 if listing.problem else 200, live=is_live)


def _page_of(listing: RequestListing, requests: Sequence[DecidedRequest]) -> tuple[Sequence[DecidedRequest], str, int]:
    selected = listing.select(requests)
    rows, next_after = page_of(selected, after=listing.after, limit=ON_A_PAGE, oldest_first=listing.is_oldest_first)
    return rows, next_after, len(selected)


def _pager(address: str, listing: RequestListing, next_after: str) -> Markup:
    return pager(address, {**listing.values, **listing.order}, after=listing.after, next_after=next_after)


# --- rows ---


def _refusal_row(request: DecidedRequest) -> Sequence[str]:
    info = request.attributes.request
    return (
        moment_cell(request.at),
        who(request),
        describe(info),
        shown(info.upstream),
        shown(request.decision.reason) or say("admin.no_rule"),
        _explain_link(request),
    )


def _decision_row(request: DecidedRequest) -> Sequence[str]:
    info = request.attributes.request
    return (
        moment_cell(request.at),
        outcome_tag(request),
        who(request),
        describe(info),
        shown(info.upstream),
        shown(request.decision.reason) or ("" if request.decision.allowed else say("admin.no_rule")),
        say("admin.stream") if request.is_stream else request.took,
        _explain_link(request),
    )


def _empty_row(names: Sequence[Markup]) -> Markup:
    """Return a row without values, which the script fills."""
    # The script replaces %1 with the request and %2 with the user.
    explain = fill("admin/explain_live.html", asked="%1", user="%2")
    places = ("at", "outcome", "user", "request", "upstream", "reason", "took")
    values = [fill("admin/live_value.html", name=name) for name in places]
    return fill("admin/row.html", cells=cells(names, [*values, explain]))


def who(request: DecidedRequest) -> str:
    user, actor = shown(request.attributes.user.username), shown(request.actor)
    return say("admin.impersonated", user=user, actor=actor) if actor else user


def outcome_tag(request: DecidedRequest) -> Markup:
    template = "tag_good.html" if request.decision.allowed else "tag_bad.html"
    return fill(f"admin/{template}", text=say(OUTCOMES[request.outcome]))


def _explain_link(request: DecidedRequest) -> Markup:
    return fill(
        "admin/explain.html",
        url=f"{REFUSALS}?id={quote(request.id, safe='')}",
        asked=describe(request.attributes.request),
        user=shown(request.attributes.user.username),
    )


def _search_form(address: str, values: Mapping[str, str], *, outcome: bool) -> Markup:
    chosen = values.get("outcome", "")
    options = join(
        fill("admin/option.html", value=each, text=say(OUTCOMES[each]), selected=Markup(" selected" * (each == chosen)))
        for each in (ALLOWED, DENIED)
    )
    fields = {name: values.get(name, "") for name in REQUEST_FIELDS if name != "outcome"}
    return fill(
        "admin/search_requests.html",
        address=address,
        outcome=fill("admin/search_outcome.html", options=options) if outcome else NOTHING,
        open=Markup(" open" if values else ""),
        **fields,
    )
