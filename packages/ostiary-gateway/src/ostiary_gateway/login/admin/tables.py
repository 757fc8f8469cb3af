"""Tables, paging and the frame of the administration pages. No side effects.

On narrow screens the style sheet turns each row into a card. So every cell repeats the name of its column, and table
elements have explicit roles, which the style would otherwise remove.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

from ostiary.core.redaction import without_tokens
from ostiary.core.text import printable
from ostiary_gateway.login.browser_session import Visitor
from ostiary_gateway.login.pages.markup import NOTHING, Markup, join
from ostiary_gateway.login.pages.messages import say
from ostiary_gateway.login.pages.page import page
from ostiary_gateway.login.pages.pieces import navigation
from ostiary_gateway.login.pages.templates import fill
from ostiary_gateway.login.responses import LoginAnswer

# URLs of the pages.
SESSIONS = "/auth/admin"
DECISIONS = "/auth/admin/decisions"
REFUSALS = "/auth/admin/refusals"
ACCOUNTS = "/auth/admin/accounts"
WHO_CAN = "/auth/admin/who-can"
REPLICAS = "/auth/admin/replicas"
# Titles by URL, in the order of the tabs.
TITLES = {
    SESSIONS: "admin.sessions",
    DECISIONS: "admin.decisions",
    REFUSALS: "admin.refusals",
    ACCOUNTS: "admin.accounts",
    WHO_CAN: "admin.who_can",
    REPLICAS: "admin.replicas",
}


class AdminFrame:
    """Frame of the pages for one visitor, who may load the pages in *tabs*."""

    def __init__(self, visitor: Visitor, tabs: Sequence[str]) -> None:
        self.visitor = visitor
        self._tabs = tabs

    def page(
        self, here: str, body: Markup, *, title: Markup | None = None, status: int = 200, live: bool = False
    ) -> LoginAnswer:
        """Return the page at *here*. A *live* one has a script that requests further data."""
        links = join(
            fill("navigation_here.html" if url == here else "navigation_link.html", url=url, text=say(TITLES[url]))
            for url in TITLES
            if url in self._tabs or url == here
        )
        visitor = self.visitor
        return page(
            title or say(TITLES[here]),
            Markup(fill("admin/tabs.html", links=links) + body),
            status=status,
            navigation=navigation(SESSIONS, admin=True, tokens=visitor.has_api_tokens, form_token=visitor.form_token),
            style="admin/style.css",
            script="admin/live.js" if live else "",
            connects=live,
        )


# --- untrusted text, and times ---

_REDACTED = "REDACTED"


def shown(text: str) -> str:
    """Return printable *text* with tokens redacted: users paste tokens into URLs, so a path may contain one."""
    return printable(without_tokens(text, _REDACTED))


def moment_text(moment: datetime | None) -> str:
    """Return a time in UTC to the second: short enough for a table, exact enough to compare with a log."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def exact_moment(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


_SORTS = {"ascending": "▲", "descending": "▼"}


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    sorted_by: Mapping[str, tuple[str, str]] | None = None,
    body_id: str = "rows",
) -> Markup:
    """Render a table. *columns* are text ids; the first cell of a row is its header.

    *sorted_by* names the sorted column, its direction, and the URL that reverses it.
    """
    names = [say(column) for column in columns]
    heads = join(
        _head(column, name, (sorted_by or {}).get(column)) for column, name in zip(columns, names, strict=True)
    )
    body = join(fill("admin/row.html", cells=cells(names, row)) for row in rows)
    return fill("admin/table.html", caption=caption, heads=heads, rows=body, id=body_id)


def cells(names: Sequence[str], row: Sequence[str]) -> Markup:
    return join(
        fill("admin/cell.html" if index else "admin/row_head.html", label=name, value=value)
        for index, (name, value) in enumerate(zip(names, row, strict=True))
    )


def moment_cell(moment: datetime | None) -> Markup:
    """Return a time that breaks only between date and time in a narrow column."""
    day, _, clock = moment_text(moment).partition(" ")
    return fill("admin/moment.html", day=day, clock=clock) if day else NOTHING


def _head(column: str, name: Markup, direction: tuple[str, str] | None) -> Markup:
    if direction is None:
        return fill("admin/head.html", text=name)
    sort, url = direction
    return fill("admin/head_sorted.html", text=name, sort=sort, sign=_SORTS[sort], url=url)


def pager(address: str, values: Mapping[str, str], *, after: str, next_after: str) -> Markup:
    """Return links to the first and the next page; empty if there is only one page. This page starts at *after*."""
    links = []
    if after:
        links.append(fill("admin/pager_first.html", url=link(address, values)))
    if next_after:
        links.append(fill("admin/pager_next.html", url=link(address, {**values, "after": next_after})))
    return fill("admin/pager.html", links=join(links)) if links else NOTHING


def link(address: str, values: Mapping[str, str]) -> str:
    query = urlencode({key: value for key, value in values.items() if value})
    return f"{address}?{query}" if query else address
