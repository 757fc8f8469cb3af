"""Parse heads that arrived in one read without httptools, if they are cached or plain.

From the cheapest to the most expensive:

    the same bytes                                     `KnownHeads`
    the same bytes, apart from trace ids               `cut_traces`, `KnownHeads`
    the same header lines, another request line        `KnownHeaderBlocks`
    a plain head                                       `PlainHeads`
    any other head                                     None: httptools parses it

Handlers attach what they derive from a head to it (`RequestHead.known`, `HeaderBlock.known`) to have it cached, and use
only their own entries.
"""

from __future__ import annotations

import re
from hashlib import sha256

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary_gateway.http1.headers import LONGEST_NAME, MOST_NAMES, TRACES
from ostiary_gateway.http1.request_head import HeaderBlock, KnownHeads, RequestHead, ServerLimits

# The effect of a header on framing.
_ORDINARY, _HOST, _LENGTH, _CONNECTION, _NOT_PLAIN = range(5)
_KINDS = {
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"connection": _CONNECTION,
    # httptools treats it like ``Connection``.
    b"proxy-connection": _NOT_PLAIN,
    b"transfer-encoding": _NOT_PLAIN,
    b"expect": _NOT_PLAIN,
    b"upgrade": _NOT_PLAIN,
}
_LINE = rb"(GET|HEAD|POST|PUT|PATCH|DELETE) (/[\x21\x22\x24-\x7e]*+) HTTP/1\.1"
_REQUEST_LINE = re.compile(_LINE).fullmatch
# One space after the colon, and no two in a row. httptools parses all other spacing.
_PLAIN = re.compile(
    _LINE + rb"((?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]++: [\x21-\x7e]++(?: [\x21-\x7e]++)*)+)\r\n\r\n"
).fullmatch
_B3 = {
    b"x-b3-traceid": (b"X-B3-TraceId",),
    b"x-b3-spanid": (b"X-B3-SpanId",),
    b"x-b3-parentspanid": (b"X-B3-ParentSpanId",),
}
# The usual spellings. Searching for these only takes half as long; a head with another spelling is not plain.
_SPELLINGS = frozenset(
    spelling
    for name in TRACES
    for spelling in (name, name.title(), name.title().replace(b"-Id", b"-ID"), *_B3.get(name, ()))
)
# A complete line of this form. It follows another line, so that it is part of the head and not of the data after it.
_TRACE = re.compile(
    rb"\r\n(?<=[\x21-\x7e]\r\n)((?:%s): [\x21-\x7e]++(?: [\x21-\x7e]++)*)(?=\r\n)" % b"|".join(sorted(_SPELLINGS))
)
# The canonical form only.
_DECIMAL = re.compile(rb"0|[1-9][0-9]{0,8}").fullmatch


class PlainHeads:
    """Parses the plain heads of one listener, and caches the meaning of header names.

    A plain head has a common method, a path, HTTP/1.1, one Host, at most one length, printable ASCII, one space after
    each colon, and nothing about the connection except keep-alive. None means "not plain", never "invalid". The result
    is the same as that of httptools (`tests/fuzz/test_plain_head_fuzz.py`).
    """

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[bytes, int] = {}

    def read(self, head: bytes, limits: ServerLimits) -> RequestHead | None:
        """Return the request of *head*, which ends with an empty line; None if it is not plain."""
        plain = _PLAIN(head)
        if plain is None or len(head) > limits.head_bytes:
            return None
        request = RequestHead()
        request.method, request.target, lines = plain.groups()
        if not self._read_headers(lines, request) or len(request.headers) > limits.headers:
            return None
        request.bare = request.content_length is None
        return request

    def _read_headers(self, lines: bytes, request: RequestHead) -> bool:
        """Parse *lines*, each of which begins with the end of the previous line. Return False if they are not plain."""
        kinds, headers = self._kinds, request.headers
        for line in lines.split(b"\r\n")[1:]:
            name, _, value = line.partition(b": ")
            headers.append((name, value))
            kind = kinds.get(name)
            if kind is None:
                kind = self._kind(name)
            if kind and not _take(kind, value, request):
                return False
        return bool(request.host)

    def _kind(self, name: bytes) -> int:
        lower = name.lower()
        kind = _NOT_PLAIN if lower in TRACES and name not in _SPELLINGS else _KINDS.get(lower, _ORDINARY)
        if len(self._kinds) < MOST_NAMES and len(name) <= LONGEST_NAME:
            self._kinds[name] = kind
        return kind


def _take(kind: int, value: bytes, request: RequestHead) -> bool:
    """Apply a header that affects framing. Return False if it makes the head not plain."""
    if kind == _HOST and not request.host:
        request.host = value
        return True
    if kind == _LENGTH and request.content_length is None and _DECIMAL(value):
        request.content_length = int(value)
        return True
    return kind == _CONNECTION and value.lower() == b"keep-alive"


def read_line(line: bytes) -> tuple[bytes, bytes] | None:
    """Return the method and target of a request line; None if it is not plain."""
    words = _REQUEST_LINE(line)
    return None if words is None else (words[1], words[2])


def cut_traces(head: bytes) -> tuple[bytes, list[bytes]]:
    """Return *head* without its lines of `TRACES`, and these lines without their line ends."""
    parts = _TRACE.split(head)
    return (b"".join(parts[::2]), parts[1::2]) if len(parts) > 1 else (head, [])


BLOCK_BYTES = 8 * 1024 * 1024
BLOCK_BYTES_PER_OWNER = 1024 * 1024
LONGEST_BLOCK = 4096
_FIXED_BYTES = 1500


class KnownHeaderBlocks:
    """A cache of header lines by the SHA-256 of their bytes, so that it contains no tokens.

    Bounded in bytes per owner.
    """

    __slots__ = ("_blocks", "find")

    def __init__(self) -> None:
        self._blocks: BoundedByOwner[bytes, HeaderBlock] = BoundedByOwner(BLOCK_BYTES, BLOCK_BYTES_PER_OWNER)
        self.find = self._blocks.get

    def keep(self, block: HeaderBlock, length: int) -> None:
        if length <= LONGEST_BLOCK:
            self._blocks.keep(block.digest, block, owner=block.known_owner, size=_FIXED_BYTES + 2 * length)

    def clear(self) -> None:
        self._blocks.clear()

    def __len__(self) -> int:
        return len(self._blocks)


class WholeHeads:
    """Parses and caches the heads of one listener."""

    __slots__ = ("_expects_traces", "_plain", "blocks", "find", "known")

    def __init__(self) -> None:
        # Whether the latest new head had trace ids: clients send them with every request or never.
        self._expects_traces = False
        self.known = KnownHeads()
        self.blocks = KnownHeaderBlocks()
        self._plain = PlainHeads()
        # Bound once: it is called for every request.
        self.find = self.known.find

    def read_new(self, head: bytes, digest: bytes, limits: ServerLimits) -> tuple[RequestHead, bytes] | None:
        """Return the request of a *head* that is not cached, and its own header lines; None if it is not plain.

        *digest* is the SHA-256 of *head*.
        """
        if len(head) > limits.head_bytes:
            return None
        if not self._expects_traces:
            # Cached blocks contain no trace ids, so there is nothing to cut out.
            line, _, headers = head.partition(b"\r\n")
            block = self.blocks.find(sha256(headers).digest())
            if block is not None:
                request = _with_another_line(block, line, head, digest, 0, limits)
                return None if request is None else (request, b"")
        core, traces = cut_traces(head)
        self._expects_traces = bool(traces)
        lines = b""
        if traces:
            lines = b"\r\n".join((*traces, b""))
            digest = sha256(core).digest()
            request = self.find(digest)
            if request is not None and request.takes_traces:
                return (request, lines) if request.header_count + len(traces) <= limits.headers else None
        line, _, headers = core.partition(b"\r\n")
        block_digest = sha256(headers).digest()
        block = self.blocks.find(block_digest)
        if block is not None:
            request = _with_another_line(block, line, head, digest, len(traces), limits)
            return None if request is None else (request, lines)
        request = self._plain.read(head, limits)
        if request is None:
            return None
        request.digest, request.traces = digest, lines
        request.block = block = HeaderBlock(request, block_digest, len(traces))
        request.header_count = block.header_count
        return request, b""

    def keep(self, head: bytes, request: RequestHead) -> None:
        """Cache what the handler of a new *request* attached."""
        block = request.block
        # If the trace ids are still among its lines, no other request has the same head.
        if request.known is not None and not request.traces:
            self.known.keep(head, request)
        if block is not None and block.is_new and block.known is not None and not request.traces:
            block.is_new = False
            self.blocks.keep(block, len(head))

    def clear(self) -> None:
        self.known.clear()
        self.blocks.clear()


def _with_another_line(
    block: HeaderBlock, line: bytes, head: bytes, digest: bytes, traces: int, limits: ServerLimits
) -> RequestHead | None:
    """Return the request with *line*, the lines of *block* and *traces* more lines; None if it is not plain."""
    words = read_line(line)
    if words is None or block.header_count + traces > limits.headers:
        return None
    request = block.request(*words)
    request.digest, request.raw = digest, head
    return request
