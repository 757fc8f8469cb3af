"""Parse plain responses that arrived in one read, as most do, without httptools.

Plain means: a usual status line, header names that httptools has accepted before, one length that matches the body
exactly, and nothing about the connection except keep-alive. None means "not plain", never "invalid".

Upstreams repeat their header lines, so the meaning of a line is cached. Within a second many responses have the same
head, including date and length, so heads are cached, too.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from ostiary_gateway.http1.headers import Action
from ostiary_gateway.http1.response import AnswerHeaders

# The meaning of a line. Numbers from 0 on are the length.
_PASS, _DROP, _NOT_PLAIN = -1, -2, -3
_WITHOUT_BODY = (204, 304)
_STATUS = {
    b"HTTP/1.1 %d %s" % (status, status.phrase.encode()): status.value
    for status in HTTPStatus
    if status >= 200 and status not in _WITHOUT_BODY
}
# Valid characters of a line (RFC 9110, 5.5).
_TEXT = bytes(byte for byte in range(256) if byte == 0x09 or (byte >= 0x20 and byte != 0x7F))
# The canonical form only, since the line is forwarded unchanged.
_DECIMAL = re.compile(rb"0|[1-9][0-9]{0,8}").fullmatch
MOST_LINES = 1024
_LONGEST_LINE = 256
_MOST_IN_ONE = 64
_MOST_HEADS = 64
_LONGEST_HEAD = 1024


class WholeAnswers:
    """Parses the plain responses of one upstream."""

    __slots__ = ("_headers", "_heads", "_meanings")

    def __init__(self, headers: AnswerHeaders) -> None:
        self._headers = headers
        self._meanings: dict[bytes, int] = {}
        # Recent heads: status, lines, and length of the body.
        self._heads: dict[bytes, tuple[int, bytes, int]] = {}

    def read(self, data: bytes) -> tuple[int, bytes, bytes] | None:
        """Return status, lines and body; None if this is not a complete plain response.

        The lines are those for the client, unchanged and with line ends: status, length, and headers that pass.
        """
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head, body = data[:end], data[end + 4 :]
        known = self._heads.get(head) or self._read_head(head)
        if known is None:
            return None
        status, lines, length = known
        return (status, lines, body) if len(body) == length else None

    def _read_head(self, head: bytes) -> tuple[int, bytes, int] | None:
        lines = head.split(b"\r\n")
        status = _STATUS.get(lines[0])
        if status is None or len(lines) > _MOST_IN_ONE:
            return None
        passing = [lines.pop(0)]
        length = -1
        meanings = self._meanings
        for line in lines:
            meaning = meanings.get(line)
            if meaning is None:
                meaning = self._meaning(line)
            if meaning == _PASS:
                passing.append(line)
            elif meaning >= 0:
                if length >= 0:
                    return None
                length = meaning
                passing.append(line)
            elif meaning == _NOT_PLAIN:
                return None
        passing.append(b"")
        known = (status, b"\r\n".join(passing), length)
        if len(head) <= _LONGEST_HEAD:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[head] = known
        return known

    def _meaning(self, line: bytes) -> int:
        name, separator, value = line.partition(b": ")
        if name not in self._headers.framing or not separator or line.translate(None, _TEXT):
            # Not cached: httptools may accept the name later.
            return _NOT_PLAIN
        lower = name.lower()
        if lower == b"audit-id":
            # Differs in every response, so caching it is useless.
            return _DROP
        meaning = self._classify(lower, value)
        if len(line) <= _LONGEST_LINE:
            if len(self._meanings) >= MOST_LINES:
                self._meanings.clear()
            self._meanings[line] = meaning
        return meaning

    def _classify(self, name: bytes, value: bytes) -> int:
        if name == b"content-length":
            return int(value) if _DECIMAL(value) else _NOT_PLAIN
        if name == b"connection":
            return _DROP if value.lower() == b"keep-alive" else _NOT_PLAIN
        if name == b"keep-alive":
            return _DROP
        return _PASS if self._headers.action(name) is Action.PASS else _NOT_PLAIN


class NoWholeAnswers(WholeAnswers):
    """Leaves every response to httptools."""

    __slots__ = ()

    def read(self, data: bytes) -> tuple[int, bytes, bytes] | None:
        return None
