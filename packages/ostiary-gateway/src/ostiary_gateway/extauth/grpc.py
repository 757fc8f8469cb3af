"""Calls of ``Authorization/Check``, and the gRPC framing and status codes that they need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ostiary_gateway.http1.write_coalescer import OutgoingTransport


class CallConnection(Protocol):
    """The connection that a call arrived on."""

    transport: OutgoingTransport
    loop: asyncio.AbstractEventLoop
    remote_address: str
    peer_certificate: bytes | None

    def answer(self, call: Call, message: bytes) -> None: ...

    def fail(self, call: Call, code: int, text: bytes) -> None: ...


class Call:
    """One call, with exactly one response.

    `secret` is the digest of the secret in its metadata. `ended` is True once it has a response or was cancelled.
    """

    __slots__ = ("connection", "ended", "message", "secret", "stream")

    def __init__(self, connection: CallConnection, stream: int, secret: bytes, message: bytes) -> None:
        self.connection = connection
        self.stream = stream
        self.secret = secret
        self.message = message
        self.ended = False

    def answer(self, message: bytes) -> None:
        """Complete the call with *message*."""
        if not self.ended:
            self.ended = True
            self.connection.answer(self, message)

    def fail(self, code: int, text: bytes) -> None:
        """Fail the call with a gRPC status code, and a text for the log of the caller."""
        if not self.ended:
            self.ended = True
            self.connection.fail(self, code, text)

    def give_up(self) -> None:
        """Mark the call as cancelled. Its handler notices when it would respond."""
        self.ended = True


Handle = Callable[[Call], None]

# Framing of messages in HTTP/2, and gRPC status codes. Pure functions.

INVALID_ARGUMENT, DEADLINE_EXCEEDED, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 4, 7, 8
UNIMPLEMENTED, INTERNAL = 12, 13
# Before each message: a compression flag and the length.
_PREFIX = 5


class BadCall(Exception):
    """The received data is not a valid call. `code` is a gRPC status code."""

    def __init__(self, code: int, text: bytes) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def message_in(data: bytes) -> bytes:
    """Return the single message of a call. Raises `BadCall`."""
    if len(data) < _PREFIX or int.from_bytes(data[1:_PREFIX], "big") != len(data) - _PREFIX:
        raise BadCall(INVALID_ARGUMENT, b"a call has exactly one message")
    if data[0]:
        raise BadCall(UNIMPLEMENTED, b"compressed messages are not understood")
    return data[_PREFIX:]
