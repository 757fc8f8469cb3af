"""Which headers of an upstream's answers pass to the client, and what each means for framing.

Made once per pool and shared by its connections. An upstream always spells a name alike, so what a spelling means is
looked up once and remembered; how many are remembered is bounded.
"""

from __future__ import annotations

from ostiary.gateway.http1.client.framing import framing_header
from ostiary.gateway.http1.headers import HOP_BY_HOP, LONGEST_NAME, OUR_COOKIES, Action, Headers

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
