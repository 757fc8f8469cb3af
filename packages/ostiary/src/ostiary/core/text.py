"""Text from outside: made fit for a terminal, and judged fit for a header. How long something takes, for people."""

from __future__ import annotations

import re
from unicodedata import category

# Letters, marks, numbers, punctuation, symbols and separators. The other categories hold what steers a
# terminal or hides text: controls, format characters, surrogates, private use.
_SHOWN = frozenset("LMNPSZ")
_LAYOUT = frozenset("\t\n\v\f\r")
# What Go's net/http refuses in the value of a header. A lone surrogate has no bytes.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def printable(text: str) -> str:
    """*text* with every character that could steer a terminal spelled out, as ``U+001B``."""
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char) else f"U+{ord(char):04X}" for char in text)


def fits_token_header(token: str) -> bool:
    """Whether a header can carry *token*: visible ASCII, no space, no line break that would begin another header."""
    return token.isascii() and token.isprintable() and " " not in token and token != ""


def fits_header(value: str) -> bool:
    """Whether a header can carry *value* and the server reads the same: no control character, no space at an end.

    As with Go, characters outside ASCII go as UTF-8.
    """
    return not _CONTROL.search(value) and value == value.strip(" \t")


def _is_shown(char: str) -> bool:
    return char in _LAYOUT or category(char)[0] in _SHOWN


def age_text(seconds: float) -> str:
    """A length of time as kubectl shows it: 45s, 12m, 5h, 3d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"
