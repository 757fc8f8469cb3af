"""Responses of an upstream: framing, header filter, and the interface of their receiver."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from ostiary_gateway.http1.headers import HOP_BY_HOP, LONGEST_NAME, OUR_COOKIES, Action, Headers


class Framing:
    """How the end of a response is determined (RFC 9112, 6.3)."""

    NONE, LENGTH, CHUNKED, CLOSE = range(4)
    __slots__ = ("kind", "length")

    def __init__(self, kind: int, length: int = 0) -> None:
        self.kind = kind
        self.length = length


NO_BODY = Framing(Framing.NONE)
CHUNKED = Framing(Framing.CHUNKED)
UNTIL_CLOSE = Framing(Framing.CLOSE)

# The effect of a header on framing.
NOT_FRAMING, LENGTH_HEADER, ENCODING_HEADER = range(3)
_FRAMING_HEADERS = {b"content-length": LENGTH_HEADER, b"transfer-encoding": ENCODING_HEADER}


def framing_header(name: bytes) -> int:
    """Return the effect of the header *name*, in any spelling, on framing."""
    return _FRAMING_HEADERS.get(name.lower(), NOT_FRAMING)


class ResponseHandler(Protocol):
    """Receives the response to one request.

    Either `response_whole` is called, or the response is delivered in parts. `response_whole`, `response_end` and
    `upstream_lost` are the last call.
    """

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """A complete response.

        *lines* include status and length, each with its line end, and can be forwarded unchanged.
        """

    def response_head(self, status: int, headers: Headers, framing: Framing) -> None: ...

    def response_informational(self, status: int, headers: Headers) -> None: ...

    def response_body(self, data: bytes) -> None: ...

    def response_flush(self) -> None:
        """All parts of one read were delivered."""

    def response_end(self, trailers: Headers) -> None: ...

    def response_switched(self, rest: bytes) -> None:
        """The upstream responded with 101: its connection is raw from now on. *rest* is the data after the head."""

    def upstream_lost(self, error: UpstreamLost) -> None: ...

    def upstream_full(self) -> None: ...

    def upstream_ready(self) -> None: ...


class FailureKind(Enum):
    LOST = "lost"
    TIMEOUT = "timeout"
    CREDENTIAL = "credential"


class UpstreamLost(Exception):
    """The upstream failed, sent an invalid response, or rejected the gateway's own credential (`kind`).

    `answered` is True if any byte of a response was received. `relayed` is True if the response may be that of a
    workload behind the upstream, which proves nothing about the upstream.
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


# Headers about the connection to the upstream, or that only the gateway may set.
_DROPPED = HOP_BY_HOP | {b"content-length", b"audit-id"}
_OUR_COOKIES = tuple(map(bytes.lower, OUR_COOKIES))
MOST_ACTIONS = 4096
MOST_FRAMING = 1024


class AnswerHeaders:
    """The header names of one upstream in its spelling, with their meaning. Shared by the connections of a pool.

    The caches are bounded. `framing` has the names that httptools has accepted.
    """

    __slots__ = ("_actions", "framing")

    def __init__(self) -> None:
        self._actions: dict[bytes, Action] = {}
        self.framing: dict[bytes, int] = {}

    def learn_framing(self, name: bytes) -> int:
        """Return the effect of *name*, which httptools has accepted, on framing."""
        kind = framing_header(name)
        if len(self.framing) < MOST_FRAMING and len(name) <= LONGEST_NAME:
            self.framing[bytes(name)] = kind
        return kind

    def action(self, name: bytes) -> Action:
        """Return PASS, DROP, or COOKIE, which passes unless it is one of the gateway's cookies."""
        action = self._actions.get(name)
        if action is None:
            action = _classify(name.lower())
            if len(self._actions) < MOST_ACTIONS and len(name) <= LONGEST_NAME:
                self._actions[bytes(name)] = action
        return action

    def lines(self, headers: Headers) -> list[bytes]:
        """Return the header lines for the client, without framing."""
        lines: list[bytes] = []
        actions = self._actions
        for name, value in headers:
            action = actions.get(name) or self.action(name)
            if action is Action.PASS or (action is Action.COOKIE and _is_theirs(value)):
                lines.append(name + b": " + value + b"\r\n")
        return lines


def _classify(name: bytes) -> Action:
    if name in _DROPPED:
        return Action.DROP
    return Action.COOKIE if name == b"set-cookie" else Action.PASS


def _is_theirs(cookie: bytes) -> bool:
    """Whether an upstream may set this cookie: with the gateway's cookie it could sign users in as another user.

    A nameless cookie is sent back as its bare value, which could look like one of the gateway's cookies.
    """
    name, equals, _ = cookie.partition(b";")[0].partition(b"=")
    name = name.strip().lower()
    return bool(equals) and name != b"" and not name.startswith(_OUR_COOKIES)
