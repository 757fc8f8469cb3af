"""Strings as in Go: bytes, in which JSON decoding replaces invalid UTF-8 instead of rejecting it.

Where a Go program stores bytes that are not UTF-8, such as a password from base64, we use Python's surrogate escapes:
`text_of` creates such a text, and `bytes_of` returns the original bytes.
"""

from __future__ import annotations

import codecs
import re
from base64 import b64decode

_EACH_BYTE = "ostiary-each-byte"
_SIX_BITS = "[A-Za-z0-9+/]"
_BASE64 = re.compile(f"(?:{_SIX_BITS}{{4}})*(?:{_SIX_BITS}{{2}}==|{_SIX_BITS}{{3}}=)?")
_RAW_BASE64 = re.compile(f"(?:{_SIX_BITS}{{4}})*{_SIX_BITS}{{0,3}}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_ESCAPE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def decode_like_go(data: bytes) -> str:
    """Decode *data* like Go's JSON decoder: each byte that is not UTF-8 becomes one replacement character."""
    return data.decode("utf-8", _EACH_BYTE)


def without_surrogates(text: str) -> str:
    """Replace each lone surrogate in *text*, which JSON can spell, with a replacement character, as Go does."""
    return _SURROGATE.sub("\ufffd", text)


def decode_base64(text: str, *, padded: bool = True) -> bytes | None:
    """Decode *text* like Go's ``base64.StdEncoding``, or ``RawStdEncoding``; None if Go rejects it.

    Line ends are skipped, nothing else is. Python's decoder would accept superfluous padding.
    """
    data = text.replace("\r", "").replace("\n", "")
    if not (_BASE64 if padded else _RAW_BASE64).fullmatch(data) or len(data) % 4 == 1:
        return None
    return b64decode(data + "=" * (-len(data) % 4))


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    return _NOT_ESCAPE.sub("\ufffd", text).encode("utf-8", "surrogateescape")


def is_text(text: str) -> bool:
    """Return whether *text* stands for UTF-8, and not for other bytes."""
    return _SURROGATE.search(text) is None


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_EACH_BYTE, _replace_each_byte)
