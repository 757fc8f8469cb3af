"""Whether a request comes from a browser with a person in front of it, by its ``Accept`` header. Pure."""

from __future__ import annotations

import re

_QUALITY = re.compile(r"\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*")


def prefers_html(accept: str) -> bool:
    """Only browsers name ``text/html``, and prefer it."""
    accepted = dict(_accepted(accept))
    html = accepted.get("text/html", 0.0)
    return html > 0 and html >= accepted.get("application/json", 0.0)


def _accepted(header: str) -> list[tuple[str, float]]:
    found = []
    for part in header.split(","):
        kind, *parameters = part.split(";")
        qualities = [match[1] for match in map(_QUALITY.fullmatch, parameters) if match]
        found.append((kind.strip().lower(), float(qualities[0]) if qualities else 1.0))
    return found
