"""The head of a request, and the rules that it must keep.

Built by `http1.server` from httptools' callbacks, and read by everything behind it. Equal bytes make equal heads, and
clients send the same ones again and again: `KnownHeads` keeps those that their handler wants to see again, so that
they are parsed once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256

import httptools

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary_gateway.http1.listen_limits import ListenLimits, ListenTimeouts

# Protocols that a connection may switch to. Others, h2c above all, would open a door behind the decision.
UPGRADES = frozenset({b"websocket", b"spdy/3.1"})
# CONNECT would open a tunnel; TRACE would show the client the head that we sent, with our own credential in it.
NOT_SERVED = frozenset((b"CONNECT", b"TRACE"))
# Heads are small, and few clients make most of the requests. All in bytes, with what was worked out from them.
KNOWN_BYTES = 32 * 1024 * 1024
KNOWN_BYTES_PER_OWNER = 4 * 1024 * 1024
LONGEST_KNOWN = 4096
_FIXED_BYTES = 1500
_LIMITS, _TIMEOUTS = ListenLimits(), ListenTimeouts()


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on what a client may send, and on how long it may take (seconds)."""

    head_bytes: int = _LIMITS.header_bytes
    headers: int = _LIMITS.headers
    pipelined: int = 16
    body_bytes: float = float("inf")
    connections: float = float("inf")
    head_timeout: float = _TIMEOUTS.header.total_seconds()
    body_timeout: float = _TIMEOUTS.body.total_seconds()
    # Bytes a second; 0: no least rate.
    body_rate: float = 0.0
    body_total: float = float("inf")
    idle_timeout: float = _TIMEOUTS.idle.total_seconds()


class RequestRefused(Exception):
    """The bytes are no request that can be served; the connection ends with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestHead:
    """The head of a request. Header names are as the client wrote them; what is forwarded is built from them.

    `known` belongs to whoever handles the request: what they have found out from these very bytes, and will want to
    know again when the same bytes come. Where it is set, the head is kept. `known_owner` says whose memory that takes,
    and `known_size` how many bytes beside the head. `digest` is the SHA-256 of these bytes; empty where nobody needed
    it yet. `traces` are lines that these bytes do not include (`server.plain_head.cut_traces`); `takes_traces`: it is
    known for requests with any such lines, and with none. `block` are its header lines, where the head is a plain
    one; if they came before, they are read from `raw` when somebody first looks at `headers`.
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
        # Nothing follows it: neither a body nor another protocol.
        self.bare = False
        self.known: object = None
        self.known_owner: Hashable = None
        self.known_size = 0
        self.digest = b""
        self.traces = b""
        self.takes_traces = False
        self.header_count = 0
        self.block: HeaderBlock | None = None
        # The bytes of a head whose headers were not read yet.
        self.raw = b""

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.content_length)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.raw:
            # Plain lines, which came before with another request line.
            pairs = [line.partition(b": ") for line in self.raw.split(b"\r\n")[1:-2]]
            self.headers = [(name, value) for name, _, value in pairs]
        return self._headers

    @headers.setter
    def headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers, self.raw = headers, b""

    def add(self, name: bytes, value: bytes) -> None:
        """The next header; raises `RequestRefused` if it cannot stand there."""
        self._headers.append((name, value))
        if len(name) in _SPECIAL_LENGTHS:
            special = _SPECIAL_NAMES.get(name.lower())
            if special is not None:
                self._note(special, value)

    def complete(self, parser: httptools.HttpRequestParser, limits: ServerLimits) -> None:
        """All headers are there; raises `RequestRefused` if they make no request that we serve."""
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
        """About how many bytes it came as."""
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
            # All that is offered; `_settle_upgrade` chooses when the whole head is known.
            self.upgrade += value.lower() + b","

    def _check_old_version(self, version: str) -> None:
        if version != "1.0":
            raise RequestRefused(505, "only HTTP/1.1 is served")
        if self.chunked:
            raise RequestRefused(400, "HTTP/1.0 has no transfer encoding")
        # It knows no interim answers (RFC 9110, 10.1.1).
        self.expects_continue = False

    def _settle_upgrade(self, parser: httptools.HttpRequestParser) -> None:
        """The first protocol offered that we can switch to; an offer of others is ignored, as HTTP allows."""
        offers, self.upgrade = self.upgrade, b""
        if not parser.should_upgrade():
            # Connection does not name it, so nothing is offered to us.
            return
        if self.has_body:
            # httptools stops after the head, and would not read it.
            raise RequestRefused(400, "a request that switches protocols has no body")
        if self.http10:
            return
        for offer in map(bytes.strip, offers.split(b",")):
            if offer in UPGRADES:
                self.upgrade = offer
                # What follows was meant for the new protocol: without a 101 it cannot be read as requests.
                self.keep_alive = False
                return


class HeaderBlock:
    """The header lines of a plain head, with whatever request line and trace ids they come.

    `known` belongs to whoever handles the request, as in `RequestHead`; where it is set, the block is kept for
    `known_owner`. Nobody may set it who does not forward every trace id.
    """

    __slots__ = ("bare", "content_length", "digest", "header_count", "host", "is_new", "known", "known_owner")

    def __init__(self, request: RequestHead, digest: bytes, traces: int) -> None:
        """Those of *request*, of which *traces* are not in the digest."""
        self.host, self.content_length, self.bare = request.host, request.content_length, request.bare
        self.header_count = len(request.headers) - traces
        self.digest = digest
        self.is_new = True
        self.known: object = None
        self.known_owner: Hashable = None

    def request(self, method: bytes, target: bytes) -> RequestHead:
        """The head of these lines with another request line."""
        request = RequestHead()
        request.method, request.target = method, target
        request.host, request.content_length, request.bare = self.host, self.content_length, self.bare
        request.header_count, request.block = self.header_count, self
        return request


class KnownHeads:
    """Heads by the SHA-256 of their bytes, so that no token is kept for them."""

    __slots__ = ("_heads", "find")

    def __init__(self) -> None:
        self._heads: BoundedByOwner[bytes, RequestHead] = BoundedByOwner(KNOWN_BYTES, KNOWN_BYTES_PER_OWNER)
        # Bound once: it is asked for every request.
        self.find = self._heads.get

    def keep(self, data: bytes, head: RequestHead) -> None:
        """Remember *head*, which is all that *data* says. Only plain ones: nothing of the others is worth it."""
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
# Most names are of another length, and looking at that costs less than lowering each.
_SPECIAL_LENGTHS = frozenset(map(len, _SPECIAL_NAMES))

# The end of the head of a request that is sent on: how its body is found, or which protocol comes next. Pure.
#
# Called by whoever writes such a head. Framing is written anew, so the upstream cannot read it in another way than we
# do.

_UPGRADE_NAMES = {b"websocket": b"websocket", b"spdy/3.1": b"SPDY/3.1"}


def framing_lines(request: RequestHead) -> bytes:
    """The end of the last line before it, the lines, and the empty line."""
    lines = b"\r\n"
    if request.chunked:
        lines += b"Transfer-Encoding: chunked\r\n"
    elif request.content_length is not None:
        lines += b"Content-Length: %d\r\n" % request.content_length
    if request.upgrade:
        lines += b"Connection: Upgrade\r\nUpgrade: " + _UPGRADE_NAMES[request.upgrade] + b"\r\n"
    return lines + b"\r\n"
