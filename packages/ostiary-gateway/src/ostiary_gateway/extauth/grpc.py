"""One call of ``Authorization/Check``: its message, and its one answer.

Made by `check.connection`, and answered by `check.handler` or by the exchange that it makes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ostiary_gateway.http1.write_coalescer import OutgoingTransport


class CallConnection(Protocol):
    """The connection that a call came on."""

    transport: OutgoingTransport
    loop: asyncio.AbstractEventLoop
    remote_address: str
    peer_certificate: bytes | None

    def answer(self, call: Call, message: bytes) -> None: ...

    def fail(self, call: Call, code: int, text: bytes) -> None: ...


class Call:
    """`secret` is the digest of the secret in its metadata. `ended`: it is answered, or nobody waits for that."""

    __slots__ = ("connection", "ended", "message", "secret", "stream")

    def __init__(self, connection: CallConnection, stream: int, secret: bytes, message: bytes) -> None:
        self.connection = connection
        self.stream = stream
        self.secret = secret
        self.message = message
        self.ended = False

    def answer(self, message: bytes) -> None:
        """The call went well, and *message* is its result."""
        if not self.ended:
            self.ended = True
            self.connection.answer(self, message)

    def fail(self, code: int, text: bytes) -> None:
        """The call failed: a status of gRPC, and a text for whoever reads the logs of the caller."""
        if not self.ended:
            self.ended = True
            self.connection.fail(self, code, text)

    def give_up(self) -> None:
        """The caller does not wait any more. What is under way for it sees that when it would answer."""
        self.ended = True


Handle = Callable[[Call], None]

# How gRPC puts a message into HTTP/2, and the statuses of a call. Pure.

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
