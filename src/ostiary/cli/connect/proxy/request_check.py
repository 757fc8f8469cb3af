"""Whether a request to a listener may go on: it names the listener, no web page sends it, and it has the token. Pure.

A port on loopback is open to every user of the machine, and to every page in every browser. The token keeps them out.
The two other checks keep a browser out even of an answer: with DNS rebinding a page reaches the port under a name of
its own, and a page's simple requests arrive without asking first.
"""

from __future__ import annotations

from typing import NamedTuple

from ostiary.cli.connect.proxy.loopback_tokens import LoopbackTokens
from ostiary.gateway.http1.request_head import RequestHead

_BEARER = b"bearer "


class RequestRefusal(NamedTuple):
    """`message` is told to the client, and names no secret."""

    status: int
    reason: str
    message: str


WRONG_HOST = RequestRefusal(421, "Forbidden", "this is the proxy of ostiary connect, and no other server")
BROWSER = RequestRefusal(403, "Forbidden", "the proxy of ostiary connect serves no web pages and no browsers")
UNAUTHORIZED = RequestRefusal(401, "Unauthorized", "Unauthorized")
NOT_A_PATH = RequestRefusal(400, "BadRequest", "the target of the request is not a path")


def refusal_for(
    request: RequestHead, authorization: bytes | None, *, host: bytes, tokens: LoopbackTokens
) -> RequestRefusal | None:
    """Why *request* is refused at the listener *host* (address and port); None if it is not."""
    if request.host.lower() != host:
        return WRONG_HOST
    if _is_from_page(request, b"https://" + host):
        return BROWSER
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return UNAUTHORIZED
    if not tokens.accepts(authorization[len(_BEARER) :].strip(b" \t")):
        return UNAUTHORIZED
    return None if request.target.startswith(b"/") else NOT_A_PATH


def _is_from_page(request: RequestHead, own_origin: bytes) -> bool:
    """Browsers set these two themselves, and no page can change them (RFC 6454; Fetch Metadata, W3C).

    Some WebSocket libraries send the server's own origin with every handshake. No page of that origin exists.
    """
    for name, value in request.headers:
        lower = name.lower()
        if lower == b"sec-fetch-site" or (lower == b"origin" and value.strip(b" \t").lower() != own_origin):
            return True
    return False
