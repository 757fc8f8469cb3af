"""One call of ``Authorization/Check``: its message, and its one answer.

Made by `check.connection`, and answered by `check.handler` or by the exchange that it makes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ostiary.gateway.http1.outbox import OutgoingTransport


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
