"""Reads a head that came whole in one read, in the plainest form, without a state machine.

Called by `server.connection` for heads whose bytes did not come before. It understands what programs usually send: a
usual method, a path, HTTP/1.1, one Host, at most one length, printable ASCII, one space after each colon, nothing about
the connection but that it stays. Everything else is left to httptools: None means "not this form", never "wrong". What
it reads, it reads as httptools does (`tests/fuzz/test_plain_head_fuzz.py`).

`cut_traces` takes out what programs put into each request anew, so that the rest can be found among the known heads.
"""

from __future__ import annotations

import re

from ostiary.gateway.http1.headers import LONGEST_NAME, MOST_NAMES, TRACES
from ostiary.gateway.http1.request_head import RequestHead, ServerLimits

# What a name means for framing.
_ORDINARY, _HOST, _LENGTH, _CONNECTION, _NOT_PLAIN = range(5)
_KINDS = {
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"connection": _CONNECTION,
    # To httptools it is the same as Connection.
    b"proxy-connection": _NOT_PLAIN,
    b"transfer-encoding": _NOT_PLAIN,
    b"expect": _NOT_PLAIN,
    b"upgrade": _NOT_PLAIN,
}
_LINE = rb"(GET|HEAD|POST|PUT|PATCH|DELETE) (/[\x21\x22\x24-\x7e]*+) HTTP/1\.1"
_REQUEST_LINE = re.compile(_LINE).fullmatch
# One space after the colon, and no two in a row: whoever writes them otherwise is read by httptools.
_PLAIN = re.compile(
    _LINE + rb"((?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]++: [\x21-\x7e]++(?: [\x21-\x7e]++)*)+)\r\n\r\n"
).fullmatch
_B3 = {
    b"x-b3-traceid": (b"X-B3-TraceId",),
    b"x-b3-spanid": (b"X-B3-SpanId",),
    b"x-b3-parentspanid": (b"X-B3-ParentSpanId",),
}
# As programs spell them. Looking for these alone takes half as long; a head with another spelling is not plain.
_SPELLINGS = frozenset(
    spelling
    for name in TRACES
    for spelling in (name, name.title(), name.title().replace(b"-Id", b"-ID"), *_B3.get(name, ()))
)
# A whole line of that form. Before it is another line, so that it is within the head and not what follows.
_TRACE = re.compile(
    rb"\r\n(?<=[\x21-\x7e]\r\n)((?:%s): [\x21-\x7e]++(?: [\x21-\x7e]++)*)(?=\r\n)" % b"|".join(sorted(_SPELLINGS))
)
# In the usual form only.
_DECIMAL = re.compile(rb"0|[1-9][0-9]{0,8}").fullmatch


class PlainHeads:
    """Reads the plain heads of one listener, and remembers what names mean."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[bytes, int] = {}

    def read(self, head: bytes, limits: ServerLimits) -> RequestHead | None:
        """The request of *head*, which ends with an empty line; None if it is not of the plainest form."""
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
        """Read *lines*, each of which begins with the end of the line before it; False if they are not plain."""
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
    """Take note of a header that matters for framing; False if it makes the head not plain."""
    if kind == _HOST and not request.host:
        request.host = value
        return True
    if kind == _LENGTH and request.content_length is None and _DECIMAL(value):
        request.content_length = int(value)
        return True
    return kind == _CONNECTION and value.lower() == b"keep-alive"


def read_line(line: bytes) -> tuple[bytes, bytes] | None:
    """The method and the target of a request line; None if it is not of the plainest form."""
    words = _REQUEST_LINE(line)
    return None if words is None else (words[1], words[2])


def cut_traces(head: bytes) -> tuple[bytes, list[bytes]]:
    """*head* without its lines of `TRACES`, and these lines, without their ends."""
    parts = _TRACE.split(head)
    return (b"".join(parts[::2]), parts[1::2]) if len(parts) > 1 else (head, [])
