"""Reads an answer that came whole in one read, as most do, without a state machine.

Called by `client.connection` with the first bytes of an answer. It understands the plainest form only: a usual status
line, names that httptools has accepted before, one length, nothing said about the connection but that it stays, and
exactly as many bytes as the length says. Everything else is left to httptools: None means "not this form", never
"wrong".

An upstream writes the same lines again and again, so what a line means is remembered by the line. Within a second many
write the very same head, with the same date and length, and so is that for a while.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from ostiary_gateway.http1.headers import Action
from ostiary_gateway.http1.response import AnswerHeaders

# What a line means. A number from 0 on is the length that it says.
_PASS, _DROP, _NOT_PLAIN = -1, -2, -3
_WITHOUT_BODY = (204, 304)
_STATUS = {
    b"HTTP/1.1 %d %s" % (status, status.phrase.encode()): status.value
    for status in HTTPStatus
    if status >= 200 and status not in _WITHOUT_BODY
}
# What a line may hold (RFC 9110, 5.5).
_TEXT = bytes(byte for byte in range(256) if byte == 0x09 or (byte >= 0x20 and byte != 0x7F))
# In the usual form only, since the line goes on as it came.
_DECIMAL = re.compile(rb"0|[1-9][0-9]{0,8}").fullmatch
MOST_LINES = 1024
_LONGEST_LINE = 256
_MOST_IN_ONE = 64
_MOST_HEADS = 64
_LONGEST_HEAD = 1024


class WholeAnswers:
    """Reads the whole answers of one upstream, and remembers what its lines mean."""

    __slots__ = ("_headers", "_heads", "_meanings")

    def __init__(self, headers: AnswerHeaders) -> None:
        self._headers = headers
        self._meanings: dict[bytes, int] = {}
        # The latest heads: status, lines, and the length of the body.
        self._heads: dict[bytes, tuple[int, bytes, int]] = {}

    def read(self, data: bytes) -> tuple[int, bytes, bytes] | None:
        """Status, lines and body; None if this is not a whole answer of the plainest form.

        The lines are those that go on to the client, each as it came and with its end: the usual status, the one
        length, what passes.
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
            # Not remembered: httptools may accept the name later.
            return _NOT_PLAIN
        lower = name.lower()
        if lower == b"audit-id":
            # It differs in every answer, so the line is not worth remembering.
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
    """Leaves every answer to httptools."""

    __slots__ = ()

    def read(self, data: bytes) -> tuple[int, bytes, bytes] | None:
        return None
