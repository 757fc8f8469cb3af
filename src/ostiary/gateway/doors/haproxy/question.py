"""The request that HAProxy will forward, read from the arguments of its message. Pure.

Called by the handler. The printed configuration names the arguments, and HAProxy fills them by itself: a client has no
say in them. An argument that is missing, or has another type, is a mistake in the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from ostiary.core.tokens import digest
from ostiary.gateway.doors.forward.question import BadQuestion, CarriedRequest, check_carried
from ostiary.gateway.doors.haproxy import spop
from ostiary.gateway.http1.headers import NO_DIGEST, Headers
from ostiary.gateway.http1.request_head import RequestHead, RequestRefused

# What a message's name begins with; the rest is the upstream.
MESSAGE_PREFIX = b"ostiary-"
SECRET, METHOD, TARGET, VERSION, HEADERS, ADDRESS, STALE = (
    *(b"secret", b"method", b"target", b"version", b"headers"),
    *(b"address", b"stale"),
)
# About HAProxy's own connections; what they say of the request is read apart.
_FRAMING = frozenset((b"host", b"connection", b"content-length", b"transfer-encoding", b"upgrade", b"expect"))


@dataclass(frozen=True, slots=True)
class HaproxyQuestion:
    """What a message asks. `key_parts` are those of the request's key, empty if its decision is for once only.

    `replaces` is whether HAProxy has a decision for the request that is no longer good.
    """

    request: CarriedRequest
    key_parts: tuple[bytes, ...]
    replaces: bool


def presented_secret(message: spop.Message) -> bytes:
    """The digest of the secret that a message presents."""
    secret = message.arguments.get(SECRET)
    return digest(secret) if isinstance(secret, bytes) and secret else NO_DIGEST


def upstream_of(message: spop.Message) -> bytes:
    """The name of the upstream that HAProxy has chosen; raises `BadQuestion`."""
    if not message.name.startswith(MESSAGE_PREFIX):
        raise BadQuestion("the message is none of the printed configuration")
    return message.name[len(MESSAGE_PREFIX) :]


def haproxy_question(message: spop.Message) -> HaproxyQuestion:
    """What *message* asks; raises `BadQuestion`, and `RequestRefused` for what our own listener would refuse, too."""
    arguments = message.arguments
    address = arguments.get(ADDRESS)
    if not isinstance(address, IPv4Address | IPv6Address):
        raise BadQuestion("the argument address is missing")
    head = RequestHead()
    head.method, version = _text(arguments, METHOD), _text(arguments, VERSION)
    try:
        headers = spop.read_headers(_text(arguments, HEADERS))
    except spop.SpopError:
        raise BadQuestion("the argument headers is not req.hdrs_bin") from None
    # There is none where the target is no path.
    target = arguments.get(TARGET)
    head.target = target if isinstance(target, bytes) else b""
    length = _read_framing(head, headers, is_http1=version.startswith(b"1."))
    head.headers = [header for header in headers if header[0].lower() not in _FRAMING]
    if not head.target:
        raise RequestRefused(400, "the request cannot be understood")
    check_carried(head, length)
    return HaproxyQuestion(
        CarriedRequest(head, str(address)), _key_parts(head), isinstance(arguments.get(STALE), bytes)
    )


def _text(arguments: dict[bytes, spop.Value], name: bytes) -> bytes:
    value = arguments.get(name)
    if not isinstance(value, bytes) or not value:
        raise BadQuestion(f"the argument {name.decode()} is missing")
    return value


def _read_framing(head: RequestHead, headers: Headers, *, is_http1: bool) -> bytes:
    """Take over what is said about host, body and connection; returns the length as it was said."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in _FRAMING:
            values.setdefault(lower, []).append(value.strip(b" \t"))
    hosts, lengths = values.get(b"host", []), values.get(b"content-length", [])
    if len(hosts) != 1 or len(lengths) > 1:
        raise RequestRefused(400, "the request must have one Host")
    head.host = hosts[0]
    head.upgrade = b",".join(values.get(b"upgrade", [])).lower()
    length = lengths[0] if lengths else b""
    # A body without an announced length, as in chunks or in HTTP/2, may have any.
    head.chunked = not length and (b"transfer-encoding" in values or not is_http1)
    head.content_length = int(length) if length.isdigit() and len(length) < 19 else None
    return length


def _key_parts(head: RequestHead) -> tuple[bytes, ...]:
    """The parts of the key under which HAProxy looks a request up, if it does so for this one: see `decisions.key`."""
    tokens = [value for name, value in head.headers if name.lower() == b"authorization"]
    impersonates = any(b"impersonate" in name.lower() for name, _ in head.headers)
    if head.upgrade or impersonates or len(tokens) != 1:
        return ()
    return (head.method, head.host, head.target, tokens[0])
