"""Texts that somebody else has chosen, and times, as the administration area shows them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from ostiary.core.secrets.redact import without_tokens
from ostiary.core.text import printable

_REDACTED = "REDACTED"


def shown(text: str) -> str:
    """*text* without what would disturb a page or a terminal. A path may hold a token that somebody pasted into it."""
    return printable(without_tokens(text, _REDACTED))


def moment_text(moment: datetime | None) -> str:
    """Short enough for a table, and exact, so that it can be compared with a log. In UTC, as the column says."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def exact_moment(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
