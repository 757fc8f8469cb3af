"""Reads an answer that came whole in one piece, as most do, without a state machine. Pure.

Called by `http1.client` with the first bytes of an answer. It understands the plainest form only: a usual status line,
names that httptools has accepted before, one length, nothing said about the connection but that it stays, and exactly
as many bytes as the length says. Whatever else comes is httptools' to judge: None means "not mine", never "wrong".

An upstream writes the same lines again and again, so what a line means is remembered by the line.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from ostiary.gateway.http1.headers import LONGEST_NAME, Action, answer_action

# What a line means. A number from 0 on is the length that it says.
_PASS, _DROP, _NOT_MINE = -1, -2, -3
_WITHOUT_BODY = (204, 304)
_STATUS = {
    b"HTTP/1.1 %d %s" % (status, status.phrase.encode()): status.value
    for status in HTTPStatus
    if status >= 200 and status not in _WITHOUT_BODY
}
# What a line may hold (RFC 9110, 5.5).
_TEXT = bytes(byte for byte in range(256) if byte == 0x09 or (byte >= 0x20 and byte != 0x7F))
# In the one way that everybody writes it, since it goes on as it came.
_DECIMAL = re.compile(rb"0|[1-9][0-9]{0,8}").fullmatch
_MOST_NAMES = 1024
_MOST_LINES = 1024
_LONGEST_LINE = 256
_MOST_IN_ONE = 64

_names: set[bytes] = set()
_meanings: dict[bytes, int] = {}


def learn(name: bytes) -> None:
    """httptools has accepted this name."""
    if len(_names) < _MOST_NAMES and len(name) <= LONGEST_NAME:
        _names.add(bytes(name))


def whole_answer(data: bytes) -> tuple[int, list[bytes], bytes] | None:
    """Status, lines and body; None if this is not a whole answer of the plainest form.

    The lines are those that go on to the client, each as it came: the usual status, the one length, what passes.
    """
    end = data.find(b"\r\n\r\n")
    lines = data[:end].split(b"\r\n")
    status = _STATUS.get(lines[0])
    if end < 0 or status is None or len(lines) > _MOST_IN_ONE:
        return None
    kept = [lines.pop(0)]
    length = -1
    for line in lines:
        meaning = _meanings.get(line)
        if meaning is None:
            meaning = _meaning(line)
        if meaning == _PASS:
            kept.append(line)
        elif meaning >= 0:
            if length >= 0:
                return None
            length = meaning
            kept.append(line)
        elif meaning == _NOT_MINE:
            return None
    body = data[end + 4 :]
    return (status, kept, body) if len(body) == length else None


def _meaning(line: bytes) -> int:
    name, separator, value = line.partition(b": ")
    if name not in _names or not separator or line.translate(None, _TEXT):
        # Not remembered: the name may be learned.
        return _NOT_MINE
    lower = name.lower()
    if lower == b"audit-id":
        # Another one with every answer.
        return _DROP
    meaning = _framing(lower, value)
    if len(line) <= _LONGEST_LINE:
        if len(_meanings) >= _MOST_LINES:
            _meanings.clear()
        _meanings[line] = meaning
    return meaning


def _framing(name: bytes, value: bytes) -> int:
    if name == b"content-length":
        return int(value) if _DECIMAL(value) else _NOT_MINE
    if name == b"connection":
        return _DROP if value.lower() == b"keep-alive" else _NOT_MINE
    if name == b"keep-alive":
        return _DROP
    return _PASS if answer_action(name) is Action.PASS else _NOT_MINE
