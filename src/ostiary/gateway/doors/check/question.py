"""The request that Envoy will forward, read from its call. Pure.

Called by the handler for a call whose sender has proved to be the proxy. Method, target, host and the client's headers
are those of the raw header map (``encode_raw_headers``), in which nothing is joined or replaced; the address is that of
the client's connection. What is missing there, or there twice, is a mistake in the proxy's configuration.
"""

from __future__ import annotations

from ipaddress import ip_address

from ostiary.gateway.doors.forward.dialects import ORIGINAL_UPGRADE
from ostiary.gateway.doors.forward.question import METHODS, BadQuestion, CarriedRequest
from ostiary.gateway.http1.headers import Headers
from ostiary.gateway.http1.listen_limits import ListenLimits
from ostiary.gateway.http1.request_head import NOT_SERVED, UPGRADES, RequestHead, RequestRefused

# The extensions of a route that say which door is asked, and to which upstream the route leads.
DOOR_EXTENSION, UPSTREAM_EXTENSION = b"ostiary-door", b"ostiary-upstream"
METHOD, TARGET, HOST = b":method", b":path", b":authority"
LENGTH = b"content-length"
# About the connection between the client and Envoy, and not about the request that is forwarded.
_NOT_FORWARDED = frozenset((b"host", b"connection", b"transfer-encoding", b"upgrade", b"expect"))


def client_address(text: bytes) -> str:
    """The client's address in its usual form; raises `BadQuestion`."""
    try:
        return str(ip_address(text.decode("ascii", "replace")))
    except ValueError:
        raise BadQuestion("the call does not say where the request comes from") from None


def carried_request(headers: Headers, address: str, limits: ListenLimits) -> CarriedRequest:
    """The request with these *headers*; raises `BadQuestion`, and `RequestRefused` as our own listener does."""
    sources: dict[bytes, bytes] = {}
    head = RequestHead()
    for name, value in headers:
        if name.startswith(b":") or name in (LENGTH, ORIGINAL_UPGRADE):
            if name in sources:
                raise BadQuestion(f"the header {_shown(name)} is there twice")
            sources[name] = value
        elif name not in _NOT_FORWARDED:
            head.headers.append((name, value))
    for required in (METHOD, TARGET):
        if not sources.get(required):
            raise BadQuestion(f"the raw header {_shown(required)} is missing: see encode_raw_headers, allowed_headers")
    head.method, head.target, head.host = sources[METHOD], sources[TARGET], sources.get(HOST, b"")
    head.upgrade = sources.get(ORIGINAL_UPGRADE, b"").lower()
    length = sources.get(LENGTH)
    # Where nobody says how long the body is, it may have any length, as if it came in chunks.
    head.chunked = length is None
    head.content_length = int(length) if length is not None and length.isdigit() and len(length) < 19 else None
    if len(head.headers) > limits.headers or head.size > limits.header_bytes:
        raise RequestRefused(431, "the head of the request is too large")
    is_no_length = length is not None and head.content_length is None
    if head.method not in METHODS or not head.host or is_no_length:
        raise RequestRefused(400, "the request cannot be understood")
    if head.method in NOT_SERVED:
        raise RequestRefused(405, "this method is not served")
    if head.upgrade and head.upgrade not in UPGRADES:
        raise RequestRefused(400, "the connection cannot switch to this protocol")
    return CarriedRequest(head, address)


def _shown(name: bytes) -> str:
    return name.decode("ascii", "replace")
