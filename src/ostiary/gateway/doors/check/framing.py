"""How gRPC puts a message into HTTP/2, and the statuses of a call. Pure."""

from __future__ import annotations

INVALID_ARGUMENT, DEADLINE_EXCEEDED, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 4, 7, 8
UNIMPLEMENTED, INTERNAL = 12, 13
# Before each message: whether it is compressed, and its length.
_PREFIX = 5


class BadCall(Exception):
    """What came is no call that is served; `code` is a status of gRPC."""

    def __init__(self, code: int, text: bytes) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def message_in(data: bytes) -> bytes:
    """The one message of a call; raises `BadCall`."""
    if len(data) < _PREFIX or int.from_bytes(data[1:_PREFIX], "big") != len(data) - _PREFIX:
        raise BadCall(INVALID_ARGUMENT, b"a call has exactly one message")
    if data[0]:
        raise BadCall(UNIMPLEMENTED, b"compressed messages are not understood")
    return data[_PREFIX:]
