"""What a benchmark says: one row a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    measured: str
    promised: str = "-"


def as_markdown(rows: Sequence[Row]) -> str:
    lines = ["| what | measured | promised |", "| --- | --- | --- |"]
    lines += [f"| {row.what} | {row.measured} | {row.promised} |" for row in rows]
    return "\n".join(lines)
