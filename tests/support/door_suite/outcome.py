"""What became of a request at a door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tests.support.door_cases import Case
from tests.support.doors import Reply

# Of a door that ended the connection without a word.
HUNG_UP = 0


@dataclass(frozen=True)
class Arrived:
    """What the upstream got, or the application: who it was told, what was asked for, and the headers besides.

    `users` has one entry unless something is wrong; `extra` is what is told of the one key that doors tell. `upstream`
    is the one that was reached; empty where the gateway does not learn it.
    """

    users: tuple[str, ...]
    uid: str
    groups: tuple[str, ...]
    extra: tuple[str, ...]
    method: str
    target: str
    upstream: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True)
class Outcome:
    """`reply` is what the client got; None where a webhook was asked, whose answer is no answer to the client."""

    status: int
    arrived: Arrived | None = None
    reply: Reply | None = None


class SuiteDoor(Protocol):
    """A way by which requests are decided on."""

    name: str

    def send(self, case: Case) -> Outcome: ...
