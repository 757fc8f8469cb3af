"""Escape untrusted text as a value in a search filter (RFC 4515) or in a distinguished name (RFC 4514).

Only listed characters stay as they are. All others are written as the hexadecimal of their bytes, which both grammars
allow for any byte. So there is no list of dangerous characters that could be incomplete.
"""

from __future__ import annotations

import re
import string

PLACEHOLDER = "{username}"

_PLAIN = frozenset((string.ascii_letters + string.digits).encode())
# A placeholder after the equals sign of a condition. Elsewhere a username could choose the attribute or the condition.
_IN_FILTER_VALUE = re.compile(r"\([^()=]+=[^()]*\Z")
_IN_DN_VALUE = re.compile(r"(?:\A|[,+])\s*[A-Za-z0-9.-]+=\Z")


def escape(text: str) -> str:
    """Return *text* as a value for a filter or a DN. Raise `UnicodeEncodeError` for lone surrogates."""
    return "".join(chr(byte) if byte in _PLAIN else f"\\{byte:02x}" for byte in text.encode())


def fill(template: str, username: str) -> str:
    return template.replace(PLACEHOLDER, escape(username))


def widen(template: str) -> str:
    """Return the filter *template* for any username, with all its other conditions."""
    return template.replace(PLACEHOLDER, "*")


def filter_mistake(text: str, *, placeholder: bool) -> str | None:
    """Return what is wrong with the filter *text*, or None. *placeholder* says whether it must have one."""
    if not _is_one_filter(text):
        return "it must be one filter in parentheses, as in (uid={username})"
    before = text.split(PLACEHOLDER)[:-1]
    if placeholder and not before:
        return f"it must have {PLACEHOLDER} in it, or it finds everybody"
    if any(not _IN_FILTER_VALUE.search(PLACEHOLDER.join(before[: index + 1])) for index in range(len(before))):
        return f"{PLACEHOLDER} can only stand for a value, as in (uid={PLACEHOLDER})"
    if not placeholder and before:
        return f"there is no {PLACEHOLDER} here: members are found by memberAttribute"
    return None


def dn_template_mistake(text: str) -> str | None:
    before, _, after = text.partition(PLACEHOLDER)
    if not _IN_DN_VALUE.search(before) or (after and after[0] not in ",+") or PLACEHOLDER in after:
        return f"it must be a name with one {PLACEHOLDER} for a value, as in uid={PLACEHOLDER},ou=people,dc=example"
    return None


def _is_one_filter(text: str) -> bool:
    depth = 0
    for position, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth <= 0 and position != len(text) - 1:
            return False
    return depth == 0 and text.endswith(")")
