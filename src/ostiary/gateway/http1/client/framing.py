"""How the end of an answer is found (RFC 9112, 6.3). Pure.

Used by `client.connection`, which reads answers, and by `upstream.proxied`, which writes their framing anew.
"""

from __future__ import annotations


class Framing:
    """How the end of one answer is found."""

    NONE, LENGTH, CHUNKED, CLOSE = range(4)
    __slots__ = ("kind", "length")

    def __init__(self, kind: int, length: int = 0) -> None:
        self.kind = kind
        self.length = length


NO_BODY = Framing(Framing.NONE)
CHUNKED = Framing(Framing.CHUNKED)
UNTIL_CLOSE = Framing(Framing.CLOSE)

# What a header says about framing.
NOT_FRAMING, LENGTH_HEADER, ENCODING_HEADER = range(3)
_FRAMING_HEADERS = {b"content-length": LENGTH_HEADER, b"transfer-encoding": ENCODING_HEADER}


def framing_header(name: bytes) -> int:
    """What the header *name*, in any spelling, says about framing."""
    return _FRAMING_HEADERS.get(name.lower(), NOT_FRAMING)
