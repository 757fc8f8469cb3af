"""The request that a proxy will forward, parsed from its forward-auth query. Pure.

Each kind of proxy has fixed sources (`dialects`); other headers of the client are ignored. A missing or duplicate
source is an error in the proxy's configuration. A value that our own listener would reject is an error of the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from ostiary_gateway.extauth.dialects import FORWARDED_FOR, ProxyDialect
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.request_head import NOT_SERVED, UPGRADES, RequestHead, RequestRefused

# The methods that our own listener accepts, which are those of httptools.
METHODS = frozenset(
    b"DELETE GET HEAD POST PUT CONNECT OPTIONS TRACE COPY LOCK MKCOL MOVE PROPFIND PROPPATCH SEARCH UNLOCK BIND REBIND"
    b" UNBIND ACL REPORT MKACTIVITY CHECKOUT MERGE M-SEARCH NOTIFY SUBSCRIBE UNSUBSCRIBE PATCH PURGE MKCALENDAR LINK"
    b" UNLINK SOURCE QUERY".split()
)
# Sent by the printed configuration for a body without an announced length.
UNKNOWN_LENGTH = b"unknown"
# Headers of the query's own connection, not of the request that it describes.
_OWN = frozenset((b"host", b"connection", b"content-length", b"transfer-encoding", b"upgrade", b"expect"))


class BadQuestion(Exception):
    """The proxy omitted required data. The message is for the operator, and quotes nothing."""


@dataclass(frozen=True, slots=True)
class CarriedRequest:
    """The request of the proxy's client. `address` is the client's; empty if the proxy does not send it."""

    head: RequestHead
    address: str


def carried_request(dialect: ProxyDialect, question: RequestHead, behind_door: bytes) -> CarriedRequest:
    """Return the request that *question* describes. *behind_door* is the target after the endpoint's own path.

    Raises `BadQuestion`, and `RequestRefused` for what our own listener would reject too.
    """
    values, others = _split(dialect, question.headers)
    head = RequestHead()
    head.headers = others
    head.method = values[dialect.method] if dialect.method else question.method
    head.target = values[dialect.uri] if dialect.uri else behind_door
    head.host = values.get(dialect.host, b"") if dialect.host else question.host
    head.upgrade = values.get(dialect.upgrade, b"").lower()
    length = values.get(dialect.length, b"")
    # Without a length the body may have any length, like a chunked one.
    head.chunked = not dialect.length or length == UNKNOWN_LENGTH
    head.content_length = int(length) if length.isdigit() and len(length) < 19 else None
    address, claimed = _addresses(values[dialect.address], dialect.address) if dialect.address else ("", b"")
    if claimed:
        head.headers.append((FORWARDED_FOR, claimed))
    check_carried(head, length)
    if dialect.joins_lines:
        _refuse_joined(head.headers)
    return CarriedRequest(head, address)


def _split(dialect: ProxyDialect, headers: Headers) -> tuple[dict[bytes, bytes], Headers]:
    """Return the values that the proxy set, by name, and the client's own headers."""
    sources = dialect.sources
    values: dict[bytes, bytes] = {}
    others: Headers = []
    for name, value in headers:
        lower = name.lower()
        if lower in sources:
            if lower in values:
                raise BadQuestion(f"the header {lower.decode()} is there twice")
            values[lower] = value.strip(b" \t")
        elif lower not in _OWN:
            others.append((name, value))
    for required in (dialect.method, dialect.uri, dialect.address):
        if required and not values.get(required):
            raise BadQuestion(f"the header {required.decode()} is missing")
    return values, others


def _addresses(value: bytes, name: bytes) -> tuple[str, bytes]:
    """Return the address of the proxy's client, which is the last entry, and the unverified entries before it."""
    before, _, last = value.rpartition(b",")
    try:
        return str(ip_address(last.strip(b" \t").decode("latin-1"))), before.strip(b" \t")
    except ValueError:
        raise BadQuestion(f"the header {name.decode()} does not end with an address") from None


def check_carried(head: RequestHead, length: bytes) -> None:
    """Raise `RequestRefused` for what our own listener would reject.

    *length* is the body's content length as it was sent.
    """
    is_no_length = bool(length) and not head.chunked and head.content_length is None
    if head.method not in METHODS or not head.host or is_no_length:
        raise RequestRefused(400, "the request cannot be understood")
    if head.method in NOT_SERVED:
        raise RequestRefused(405, "this method is not served")
    if head.upgrade and head.upgrade not in UPGRADES:
        raise RequestRefused(400, "the connection cannot switch to this protocol")


def _refuse_joined(headers: Headers) -> None:
    """Reject joined Impersonate headers: two users would become one with a comma in the name, and two groups one."""
    if any(name.lower().startswith(b"impersonate") and b"," in value for name, value in headers):
        raise RequestRefused(400, "through this proxy an Impersonate header comes once, and without a comma")
