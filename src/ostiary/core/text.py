"""Text from outside: made fit for a terminal, and judged fit for a header."""

from __future__ import annotations

from unicodedata import category

# Letters, marks, numbers, punctuation, symbols and separators. The other categories hold what steers a
# terminal or hides text: controls, format characters, surrogates, private use.
_SHOWN = frozenset("LMNPSZ")
_LAYOUT = frozenset("\t\n\v\f\r")


def printable(text: str) -> str:
    """*text* with every character that could steer a terminal spelled out, as ``U+001B``."""
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char) else f"U+{ord(char):04X}" for char in text)


def fits_token_header(token: str) -> bool:
    """Whether a header can carry *token*: visible ASCII, no space, no line break that would begin another header."""
    return token.isascii() and token.isprintable() and " " not in token and token != ""


def fits_header(value: str) -> bool:
    """Whether a header can carry *value*: text without a line break or another control character."""
    return value.isprintable() and value == value.strip()


def _is_shown(char: str) -> bool:
    return char in _LAYOUT or category(char)[0] in _SHOWN
