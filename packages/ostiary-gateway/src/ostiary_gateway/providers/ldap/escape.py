"""Text from outside as a value in a search filter (RFC 4515) or in a distinguished name (RFC 4514). Pure.

What is plain here is listed, and everything else is spelled as the hexadecimal of its bytes, which both grammars take
for any byte. So there is no list of dangerous characters that could lack one.
"""

from __future__ import annotations

import re
import string

PLACEHOLDER = "{username}"

_PLAIN = frozenset((string.ascii_letters + string.digits).encode())
# A placeholder behind the equals sign of a condition: elsewhere a name would choose the attribute, or the condition.
_IN_FILTER_VALUE = re.compile(r"\([^()=]+=[^()]*\Z")
_IN_DN_VALUE = re.compile(r"(?:\A|[,+])\s*[A-Za-z0-9.-]+=\Z")


def escape(text: str) -> str:
    """*text* as a value, in a filter and in a name alike. Raises `UnicodeEncodeError` if it is no Unicode text."""
    return "".join(chr(byte) if byte in _PLAIN else f"\\{byte:02x}" for byte in text.encode())


def fill(template: str, username: str) -> str:
    return template.replace(PLACEHOLDER, escape(username))


def widen(template: str) -> str:
    """The filter *template* for any name at all: what else it demands of an entry stays."""
    return template.replace(PLACEHOLDER, "*")


def filter_mistake(text: str, *, placeholder: bool) -> str | None:
    """Why *text* is no filter, or none with a placeholder for a value; None if it may be one."""
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
