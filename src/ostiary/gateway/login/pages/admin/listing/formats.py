"""Rows as CSV and as JSON, for people who open them elsewhere. Pure.

Called by the exports. A name or a path is chosen by somebody else, and a spreadsheet runs what looks like a formula: in
CSV such a cell gets an apostrophe before it. JSON has all texts as they are.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

Row = Mapping[str, str]
# What begins a formula in spreadsheets, in its wide forms too, and what they skip before it.
_FORMULA_STARTS = tuple(
    "=+-@\t\r\n|\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)


class Format(Protocol):
    content_type: str

    def head(self) -> bytes: ...

    def rows(self, rows: Iterable[Row]) -> bytes: ...

    def foot(self) -> bytes: ...


class Csv:
    content_type = "text/csv; charset=utf-8; header=present"

    def __init__(self, kind: str, columns: Sequence[str]) -> None:
        self._columns = columns

    def head(self) -> bytes:
        return _csv_line(self._columns)

    def rows(self, rows: Iterable[Row]) -> bytes:
        return b"".join(_csv_line([harmless_cell(row[column]) for column in self._columns]) for row in rows)

    def foot(self) -> bytes:
        return b""


class Json:
    content_type = "application/json"

    def __init__(self, kind: str, columns: Sequence[str]) -> None:
        self._kind = kind
        self._columns = columns
        self._is_first = True

    def head(self) -> bytes:
        return b'{"kind": %s, "items": [' % json.dumps(self._kind).encode()

    def rows(self, rows: Iterable[Row]) -> bytes:
        parts = []
        for row in rows:
            parts.append("\n" if self._is_first else ",\n")
            parts.append(json.dumps({column: row[column] for column in self._columns}))
            self._is_first = False
        return "".join(parts).encode()

    def foot(self) -> bytes:
        return b"\n]}\n"


FORMATS: Mapping[str, type[Csv] | type[Json]] = {"csv": Csv, "json": Json}


def harmless_cell(text: str) -> str:
    """*text* as a cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA_STARTS) else text


def _csv_line(cells: Sequence[str]) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line, quoting=csv.QUOTE_ALL).writerow(cells)
    return line.getvalue().encode("utf-8", "replace")
