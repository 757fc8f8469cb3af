"""What the sender of a request hears from its upstream connection: the answer, or why there is none.

Implemented by `upstream.proxied` and `upstream.health`; called by `client.connection`.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from ostiary_gateway.http1.headers import HOP_BY_HOP, LONGEST_NAME, OUR_COOKIES, Action, Headers

# How the end of an answer is found (RFC 9112, 6.3). Pure.
#
# Used by `client.connection`, which reads answers, and by `upstream.proxied`, which writes their framing anew.


class Framing:
    """How the end of one answer is found."""

    NONE, LENGTH, CHUNKED, CLOSE = range(4)
    __slots__ = ("kind", "length")

    def __init__(self, kind: int, length: int = 0) -> None:
        self.kind = kind
        self.length = length


NO_BODY = Framing(Framing.NONE)
CHUNKED = Framing(Framing.CHUNKED)
UNTIL_CLOSE = Framing(Framing.CLOSE)

# What a header says about framing.
NOT_FRAMING, LENGTH_HEADER, ENCODING_HEADER = range(3)
_FRAMING_HEADERS = {b"content-length": LENGTH_HEADER, b"transfer-encoding": ENCODING_HEADER}


def framing_header(name: bytes) -> int:
    """What the header *name*, in any spelling, says about framing."""
    return _FRAMING_HEADERS.get(name.lower(), NOT_FRAMING)


class ResponseHandler(Protocol):
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


# Which headers of an upstream's answers pass to the client, and what each means for framing.
#
# Made once per pool and shared by its connections. An upstream always spells a name alike, so what a spelling means is
# looked up once and remembered; how many are remembered is bounded.

# Headers that speak about the connection to the upstream, or that only we may set.
_DROPPED = HOP_BY_HOP | {b"content-length", b"audit-id"}
_OUR_COOKIES = tuple(map(bytes.lower, OUR_COOKIES))
MOST_ACTIONS = 4096
MOST_FRAMING = 1024


class AnswerHeaders:
    """The header names that one upstream uses, as it spells them.

    `framing` holds the names that httptools has accepted, by what they say about framing.
    """

    __slots__ = ("_actions", "framing")

    def __init__(self) -> None:
        self._actions: dict[bytes, Action] = {}
        self.framing: dict[bytes, int] = {}

    def learn_framing(self, name: bytes) -> int:
        """What *name*, which httptools has accepted, says about framing."""
        kind = framing_header(name)
        if len(self.framing) < MOST_FRAMING and len(name) <= LONGEST_NAME:
            self.framing[bytes(name)] = kind
        return kind

    def action(self, name: bytes) -> Action:
        """What becomes of a header: PASS, DROP, or COOKIE, which passes unless it is one of ours."""
        action = self._actions.get(name)
        if action is None:
            action = _classify(name.lower())
            if len(self._actions) < MOST_ACTIONS and len(name) <= LONGEST_NAME:
                self._actions[bytes(name)] = action
        return action

    def lines(self, headers: Headers) -> list[bytes]:
        """The lines of an answer that go to the client. Framing is not among them."""
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
    """Whether an upstream may set this: one that could set our cookie could sign its visitors in as somebody else.

    A cookie without a name comes back as its value alone, which may look like one of ours.
    """
    name, equals, _ = cookie.partition(b";")[0].partition(b"=")
    name = name.strip().lower()
    return bool(equals) and name != b"" and not name.startswith(_OUR_COOKIES)
