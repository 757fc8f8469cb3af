"""The head of a request: validation, and a cache by the bytes of the head, because clients repeat them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256

import httptools

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary_gateway.http1.listen_limits import ListenLimits, ListenTimeouts

# Protocols that a connection may switch to. Others, above all h2c, would bypass authorization.
UPGRADES = frozenset({b"websocket", b"spdy/3.1"})
# CONNECT would open a tunnel. TRACE would return the forwarded head with the gateway's credential.
NOT_SERVED = frozenset((b"CONNECT", b"TRACE"))
# Heads are small, and few clients send most of the requests. Sizes include what is attached to the heads.
KNOWN_BYTES = 32 * 1024 * 1024
KNOWN_BYTES_PER_OWNER = 4 * 1024 * 1024
LONGEST_KNOWN = 4096
_FIXED_BYTES = 1500
_LIMITS, _TIMEOUTS = ListenLimits(), ListenTimeouts()


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits on the size and duration of a request. Times are in seconds."""

    head_bytes: int = _LIMITS.header_bytes
    headers: int = _LIMITS.headers
    pipelined: int = 16
    body_bytes: float = float("inf")
    connections: float = float("inf")
    head_timeout: float = _TIMEOUTS.header.total_seconds()
    body_timeout: float = _TIMEOUTS.body.total_seconds()
    # Minimum, in bytes per second; 0: none.
    body_rate: float = 0.0
    body_total: float = float("inf")
    idle_timeout: float = _TIMEOUTS.idle.total_seconds()


class RequestRefused(Exception):
    """The request cannot be served. The connection is closed after a response with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestHead:
    """The head of a request. Header names have the client's spelling, in which they are forwarded.

    known: set by the handler to what it derived from these bytes, to have the head cached.
    known_owner, known_size: the user whose budget the entry uses, and its size in addition to the head.
    digest: SHA-256 of the bytes; empty if it was not needed yet.
    traces: lines that the bytes do not include (`fast_head_parser.cut_traces`).
    takes_traces: the cached entry applies to requests with any such lines, or none.
    block: the header lines of a plain head. If they were cached, `headers` parses `raw` on first access.
    """

    __slots__ = (
        "_headers",
        "bare",
        "block",
        "chunked",
        "content_length",
        "digest",
        "expects_continue",
        "header_count",
        "host",
        "http10",
        "keep_alive",
        "known",
        "known_owner",
        "known_size",
        "method",
        "raw",
        "takes_traces",
        "target",
        "traces",
        "upgrade",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self.host = b""
        self.http10 = False
        self.chunked = False
        self.content_length: int | None = None
        self.expects_continue = False
        self.keep_alive = True
        self.upgrade = b""
        # Followed by neither a body nor another protocol.
        self.bare = False
        self.known: object = None
        self.known_owner: Hashable = None
        self.known_size = 0
        self.digest = b""
        self.traces = b""
        self.takes_traces = False
        self.header_count = 0
        self.block: HeaderBlock | None = None
        # The bytes of a head whose headers were not parsed yet.
        self.raw = b""

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.content_length)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.raw:
            # Plain lines that were cached with another request line.
            pairs = [line.partition(b": ") for line in self.raw.split(b"\r\n")[1:-2]]
            self.headers = [(name, value) for name, _, value in pairs]
        return self._headers

    @headers.setter
    def headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers, self.raw = headers, b""

    def add(self, name: bytes, value: bytes) -> None:
        """Add the next header; raises `RequestRefused` if it is invalid."""
        self._headers.append((name, value))
        if len(name) in _SPECIAL_LENGTHS:
            special = _SPECIAL_NAMES.get(name.lower())
            if special is not None:
                self._note(special, value)

    def complete(self, parser: httptools.HttpRequestParser, limits: ServerLimits) -> None:
        """Validate the complete head; raises `RequestRefused` if it is not served."""
        version = parser.get_http_version()
        self.http10 = version == "1.0"
        self.method = parser.get_method()
        if version != "1.1":
            self._check_old_version(version)
        elif not self.host:
            raise RequestRefused(400, "the request has no Host")
        if len(self.headers) > limits.headers:
            raise RequestRefused(431, "the request has too many headers")
        self.keep_alive = parser.should_keep_alive()
        if self.method in NOT_SERVED:
            raise RequestRefused(405, "this method is not served")
        if self.upgrade:
            self._settle_upgrade(parser)
        if self.content_length and self.content_length > limits.body_bytes:
            raise RequestRefused(413, "the request's body is too large")
        self.bare = not (self.chunked or self.upgrade) and self.content_length is None

    @property
    def size(self) -> int:
        """The approximate size of the head in bytes."""
        return len(self.target) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _note(self, special: int, value: bytes) -> None:
        if special == _HOST:
            if self.host or not value:
                raise RequestRefused(400, "the request must have one Host")
            self.host = value.rstrip(b" \t")
        elif special == _LENGTH:
            self.content_length = int(value)
        elif special == _ENCODING:
            if self.chunked or value.lower() != b"chunked":
                raise RequestRefused(400, "only one transfer encoding is understood: chunked")
            self.chunked = True
        elif special == _EXPECT:
            if value.rstrip(b" \t").lower() != b"100-continue":
                raise RequestRefused(417, "the expectation cannot be met")
            self.expects_continue = True
        elif special == _UPGRADE:
            # Collects all offers; `_settle_upgrade` selects one when the head is complete.
            self.upgrade += value.lower() + b","

    def _check_old_version(self, version: str) -> None:
        if version != "1.0":
            raise RequestRefused(505, "only HTTP/1.1 is served")
        if self.chunked:
            raise RequestRefused(400, "HTTP/1.0 has no transfer encoding")
        # HTTP/1.0 has no interim responses (RFC 9110, 10.1.1).
        self.expects_continue = False

    def _settle_upgrade(self, parser: httptools.HttpRequestParser) -> None:
        """Select the first supported protocol. Other offers are ignored, as HTTP allows."""
        offers, self.upgrade = self.upgrade, b""
        if not parser.should_upgrade():
            # ``Connection`` does not list it, so the offer is not for us.
            return
        if self.has_body:
            # httptools stops after the head and would not read the body.
            raise RequestRefused(400, "a request that switches protocols has no body")
        if self.http10:
            return
        for offer in map(bytes.strip, offers.split(b",")):
            if offer in UPGRADES:
                self.upgrade = offer
                # The data that follows belongs to the new protocol; without a 101 it cannot be parsed as requests.
                self.keep_alive = False
                return


class HeaderBlock:
    """The header lines of a plain head, independent of its request line and trace ids.

    `known` is set by the handler, as in `RequestHead`, to have the block cached for `known_owner`. It must be set only
    if every trace id is forwarded.
    """

    __slots__ = ("bare", "content_length", "digest", "header_count", "host", "is_new", "known", "known_owner")

    def __init__(self, request: RequestHead, digest: bytes, traces: int) -> None:
        """Create the block of *request*, without *traces* lines that are not part of the digest."""
        self.host, self.content_length, self.bare = request.host, request.content_length, request.bare
        self.header_count = len(request.headers) - traces
        self.digest = digest
        self.is_new = True
        self.known: object = None
        self.known_owner: Hashable = None

    def request(self, method: bytes, target: bytes) -> RequestHead:
        """Return the head with these lines and another request line."""
        request = RequestHead()
        request.method, request.target = method, target
        request.host, request.content_length, request.bare = self.host, self.content_length, self.bare
        request.header_count, request.block = self.header_count, self
        return request


class KnownHeads:
    """A cache of heads by the SHA-256 of their bytes, so that it contains no tokens."""

    __slots__ = ("_heads", "find")

    def __init__(self) -> None:
        self._heads: BoundedByOwner[bytes, RequestHead] = BoundedByOwner(KNOWN_BYTES, KNOWN_BYTES_PER_OWNER)
        # Bound once: it is called for every request.
        self.find = self._heads.get

    def keep(self, data: bytes, head: RequestHead) -> None:
        """Cache *head*, parsed from *data*, if it is a plain one. Others are not worth it."""
        plain = head.keep_alive and not (head.chunked or head.expects_continue or head.http10)
        if plain and len(data) <= LONGEST_KNOWN:
            size = _FIXED_BYTES + len(data) + head.known_size
            digest = head.digest or sha256(data).digest()
            self._heads.keep(digest, head, owner=head.known_owner, size=size)

    def clear(self) -> None:
        self._heads.clear()

    def __len__(self) -> int:
        return len(self._heads)


_HOST, _LENGTH, _ENCODING, _EXPECT, _UPGRADE = 1, 2, 3, 4, 5
_SPECIAL_NAMES = {
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"expect": _EXPECT,
    b"upgrade": _UPGRADE,
}
# Most names have another length, and comparing it costs less than lower-casing the name.
_SPECIAL_LENGTHS = frozenset(map(len, _SPECIAL_NAMES))


_UPGRADE_NAMES = {b"websocket": b"websocket", b"spdy/3.1": b"SPDY/3.1"}


def framing_lines(request: RequestHead) -> bytes:
    """Return the end of a forwarded head, beginning with the end of the previous line.

    The framing is written again, so that the upstream cannot interpret it differently.
    """
    lines = b"\r\n"
    if request.chunked:
        lines += b"Transfer-Encoding: chunked\r\n"
    elif request.content_length is not None:
        lines += b"Content-Length: %d\r\n" % request.content_length
    if request.upgrade:
        lines += b"Connection: Upgrade\r\nUpgrade: " + _UPGRADE_NAMES[request.upgrade] + b"\r\n"
    return lines + b"\r\n"
