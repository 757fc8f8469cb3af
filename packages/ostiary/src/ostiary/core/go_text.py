"""Text as Go holds it: a string of Go is bytes, and what is not text in JSON is replaced, not refused.

Where a Go program keeps bytes that are not UTF-8, such as a password out of base64, we keep a text with Python's
surrogate escapes: `text_of` makes it, and `bytes_of` gives the same bytes back.
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
    """*data* as Go's JSON decoder reads text: each byte that is not UTF-8 becomes one replacement character."""
    return data.decode("utf-8", _EACH_BYTE)


def without_surrogates(text: str) -> str:
    """*text* with a replacement character for each half of a surrogate pair, which JSON can spell and Go replaces."""
    return _SURROGATE.sub("\ufffd", text)


def decode_base64(text: str, *, padded: bool = True) -> bytes | None:
    """What Go's ``base64.StdEncoding`` makes of *text*, or ``RawStdEncoding``; None if it refuses it.

    Line ends are read over and nothing else is. Python's decoder would take padding that is not needed.
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
    """Whether *text* stands for UTF-8, and not for other bytes."""
    return _SURROGATE.search(text) is None


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_EACH_BYTE, _replace_each_byte)
