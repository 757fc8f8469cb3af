"""Tables and the links from page to page: values in, markup out. Pure.

Called by the pages of the administration area. On a phone each row becomes a card, by style alone: so a cell has the
name of its column with it, and each part of a table says its role, which it would lose by the style.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from urllib.parse import urlencode

from ostiary.gateway.login.pages.admin.listing.texts import moment_text
from ostiary.gateway.login.pages.markup import NOTHING, Markup, join
from ostiary.gateway.login.pages.messages import say
from ostiary.gateway.login.pages.templates import fill

_SORTS = {"ascending": "▲", "descending": "▼"}


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    sorted_by: Mapping[str, tuple[str, str]] | None = None,
    body_id: str = "rows",
) -> Markup:
    """*columns* are ids of texts; the first cell of a row is what the row is about.

    *sorted_by* names the column that the rows are sorted by: its direction, and the address of the other direction.
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
    """A time that a narrow column breaks after its day, and nowhere else."""
    day, _, clock = moment_text(moment).partition(" ")
    return fill("admin/moment.html", day=day, clock=clock) if day else NOTHING


def _head(column: str, name: Markup, direction: tuple[str, str] | None) -> Markup:
    if direction is None:
        return fill("admin/head.html", text=name)
    sort, url = direction
    return fill("admin/head_sorted.html", text=name, sort=sort, sign=_SORTS[sort], url=url)


def pager(address: str, values: Mapping[str, str], *, after: str, next_after: str) -> Markup:
    """The way to the next page and back to the first; nothing if there is only one. This one begins at *after*."""
    links = []
    if after:
        links.append(fill("admin/pager_first.html", url=link(address, values)))
    if next_after:
        links.append(fill("admin/pager_next.html", url=link(address, {**values, "after": next_after})))
    return fill("admin/pager.html", links=join(links)) if links else NOTHING


def link(address: str, values: Mapping[str, str]) -> str:
    query = urlencode({key: value for key, value in values.items() if value})
    return f"{address}?{query}" if query else address
