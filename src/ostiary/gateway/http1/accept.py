"""Whether a request comes from a browser, by its ``Accept`` header. Pure.

Called wherever an answer is a page for a person or a ``Status`` for a program.
"""

from __future__ import annotations

import re

_QUALITY = re.compile(r"\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*")


def prefers_html(accept: str) -> bool:
    """Only browsers name ``text/html``, and prefer it."""
    qualities = dict(_parse_accept(accept))
    html = qualities.get("text/html", 0.0)
    return html > 0 and html >= qualities.get("application/json", 0.0)


def _parse_accept(header: str) -> list[tuple[str, float]]:
    kinds = []
    for part in header.split(","):
        kind, *parameters = part.split(";")
        qualities = [match[1] for match in map(_QUALITY.fullmatch, parameters) if match]
        kinds.append((kind.strip().lower(), float(qualities[0]) if qualities else 1.0))
    return kinds
