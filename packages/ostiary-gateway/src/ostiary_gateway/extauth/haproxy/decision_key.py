"""The key under which HAProxy looks a request up in its map of decisions. Pure.

The handler makes it of a question; HAProxy makes it of the request with the expression that ``ostiary-gateway door
haproxy`` prints (`KEY_FORMAT`). Both must give the same text. It is a digest, so the map holds no token.

The parts are joined by line feeds, which none of them can hold: HAProxy refuses a line feed in a header or a target, of
HTTP/1 and of HTTP/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

# In the language of HAProxy, with the name of the door and of the upstream before it.
KEY_FORMAT = r"%[method]\n%[req.fhdr(host)]\n%[pathq]\n%[req.fhdr(authorization)]"


def decision_key(door: bytes, upstream: bytes, parts: Sequence[bytes]) -> str:
    """The key of a request; *parts* are its method, host, target and ``Authorization``."""
    return sha256(b"\n".join((door, upstream, *parts))).hexdigest().upper()
