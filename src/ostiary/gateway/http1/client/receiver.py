"""What the sender of a request hears from its upstream connection: the answer, or why there is none.

Implemented by `upstream.proxied` and `upstream.health`; called by `client.connection`.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from ostiary.gateway.http1.client.framing import Framing
from ostiary.gateway.http1.headers import Headers


class Receiver(Protocol):
    """The sender of one request.

    It hears `response_whole`, or the answer piece by piece. `response_whole`, `response_end` and `upstream_lost` are
    the last call.
    """

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """All of it at once. *lines* (status and length among them, each with its end) may go on as they are."""

    def response_head(self, status: int, headers: Headers, framing: Framing) -> None: ...

    def response_informational(self, status: int, headers: Headers) -> None: ...

    def response_body(self, data: bytes) -> None: ...

    def response_flush(self) -> None:
        """All parts that came with one read have been delivered."""

    def response_end(self, trailers: Headers) -> None: ...

    def response_switched(self, rest: bytes) -> None:
        """The upstream answered 101: its connection is a raw one now, and *rest* are its first bytes."""

    def upstream_lost(self, error: UpstreamLost) -> None: ...

    def upstream_full(self) -> None: ...

    def upstream_ready(self) -> None: ...


class FailureKind(Enum):
    LOST = "lost"
    TIMEOUT = "timeout"
    CREDENTIAL = "credential"


class UpstreamLost(Exception):
    """The upstream went away, cannot be understood, or does not accept the gateway's own credential (`kind`).

    `answered` tells whether any byte of a response had come; `relayed`, that the answer may be that of a program behind
    the upstream, which proves nothing about the upstream.
    """

    def __init__(
        self, message: str, *, answered: bool, kind: FailureKind = FailureKind.LOST, relayed: bool = False
    ) -> None:
        super().__init__(message)
        self.answered = answered
        self.kind = kind
        self.relayed = relayed

    @property
    def timeout(self) -> bool:
        return self.kind is FailureKind.TIMEOUT
