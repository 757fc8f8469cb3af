"""Helpers for foreign text: make it safe for a terminal, check it for headers, format durations for users."""

from __future__ import annotations

import re
from unicodedata import category

# Letters, marks, numbers, punctuation, symbols and separators. The other categories can control a terminal or hide
# text: controls, format characters, surrogates, private use.
_SHOWN = frozenset("LMNPSZ")
_LAYOUT = frozenset("\t\n\v\f\r")
# What Go's net/http rejects in a header value. A lone surrogate cannot be encoded.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def printable(text: str) -> str:
    """Return *text* with every character that could control a terminal spelled out, as ``U+001B``."""
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char) else f"U+{ord(char):04X}" for char in text)


def fits_token_header(token: str) -> bool:
    """Return whether *token* is valid in a header: visible ASCII without spaces and line breaks (header injection)."""
    return token.isascii() and token.isprintable() and " " not in token and token != ""


def fits_header(value: str) -> bool:
    """Return whether *value* survives as a header value: no control character, no leading or trailing space.

    As in Go, characters outside ASCII are sent as UTF-8.
    """
    return not _CONTROL.search(value) and value == value.strip(" \t")


def _is_shown(char: str) -> bool:
    return char in _LAYOUT or category(char)[0] in _SHOWN


def age_text(seconds: float) -> str:
    """Format a duration like kubectl: 45s, 12m, 5h, 3d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"
