"""Places in a list of sessions: when a session began, in microseconds, and what orders those of the same moment. Pure.

Called by the token stores that list sessions page by page (`ostiary.interfaces.store_abilities.session_pages`).
"""

from __future__ import annotations

import re

# A session's id is short; the text comes from a URL.
_PLACE = re.compile(r"(-?[0-9]{1,18}):(.{1,256})", re.DOTALL)
_LARGEST = 2**63 - 1


def place_text(created_at: int, rest: str | int) -> str:
    return f"{created_at}:{rest}"


def read_place(text: str) -> tuple[int, str]:
    """Raises `ValueError` for what is no place."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError("this is no place in the list of sessions")
    return int(match[1]), match[2]


def read_numbered_place(text: str) -> tuple[int, int]:
    """The same of a store that numbers its sessions."""
    created_at, rest = read_place(text)
    if not rest.isascii() or not rest.isdigit() or len(rest) > 19 or int(rest) > _LARGEST:
        raise ValueError("this is no place in the list of sessions")
    return created_at, int(rest)
