"""The key of a request in HAProxy's map of decisions. Pure.

The handler computes it from a query, and HAProxy from the request, with the expression that ``ostiary-gateway door
haproxy`` prints (`KEY_FORMAT`). Both must be equal. It is a digest, so the map contains no token.

The parts are joined by line feeds, which none of them can contain: HAProxy rejects a line feed in a header or a target,
in HTTP/1 and HTTP/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

# A HAProxy log format. The names of the endpoint and of the upstream precede it.
KEY_FORMAT = r"%[method]\n%[req.fhdr(host)]\n%[pathq]\n%[req.fhdr(authorization)]"


def decision_key(door: bytes, upstream: bytes, parts: Sequence[bytes]) -> str:
    """Return the key of a request. *parts* are its method, host, target and ``Authorization``."""
    return sha256(b"\n".join((door, upstream, *parts))).hexdigest().upper()
