"""Finds the token that a request presents: in its ``Authorization`` header, or among its WebSocket protocols.

Called by the engine, and by the webhooks for the tokens of their callers. Pure.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from ostiary_gateway.http1.headers import FilteredHeaders, websocket_token

if TYPE_CHECKING:
    # For its type alone: a backend that reads a header needs no parser of heads.
    from ostiary_gateway.http1.request_head import RequestHead


def presented_token(scanned: FilteredHeaders, request: RequestHead) -> bytes | None:
    """The token of a request; None if it presents none. Raises `BadHeader` if it presents two."""
    if scanned.authorization is not None:
        return bearer(scanned.authorization)
    if request.upgrade != b"websocket":
        return None
    encoded = websocket_token(request.headers)
    return None if encoded is None else decode_token(encoded)


def bearer(authorization: bytes) -> bytes | None:
    """The token of an ``Authorization`` header, as Kubernetes reads it; None if it has another form."""
    parts = authorization.strip(b" \t").split(b" ", 2)
    if len(parts) < 2 or parts[0].lower() != b"bearer" or not parts[1]:
        return None
    return parts[1]


def decode_token(encoded: bytes) -> bytes | None:
    """A token as a WebSocket's protocol has it; None if it cannot be read."""
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
