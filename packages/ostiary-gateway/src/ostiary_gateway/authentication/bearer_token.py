"""Extract the bearer token of a request: from ``Authorization``, or from a WebSocket subprotocol."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from ostiary_gateway.http1.headers import FilteredHeaders, websocket_token

if TYPE_CHECKING:
    # Only for its type: a backend that reads a header does not need the parser of heads.
    from ostiary_gateway.http1.request_head import RequestHead


def presented_token(scanned: FilteredHeaders, request: RequestHead) -> bytes | None:
    """Return the token of a request, or None. Raises `BadHeader` if there are two."""
    if scanned.authorization is not None:
        return bearer(scanned.authorization)
    if request.upgrade != b"websocket":
        return None
    encoded = websocket_token(request.headers)
    return None if encoded is None else decode_token(encoded)


def bearer(authorization: bytes) -> bytes | None:
    """Return the token of an ``Authorization`` header, parsed like Kubernetes; None if it has another format."""
    parts = authorization.strip(b" \t").split(b" ", 2)
    if len(parts) < 2 or parts[0].lower() != b"bearer" or not parts[1]:
        return None
    return parts[1]


def decode_token(encoded: bytes) -> bytes | None:
    """Decode a token in a WebSocket subprotocol; None if it is invalid."""
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
