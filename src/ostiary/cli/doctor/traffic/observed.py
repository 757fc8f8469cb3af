"""What is seen of a request: the answer at the client's side, and what arrived behind the proxy. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from ostiary.gateway.http1.headers import normal_name

Pairs = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as the echo got it. `head` is its bytes as they came, the request line included.

    `number` counts the requests on one connection from 0: the echo ends a connection after the first, so any other was
    inside of what the proxy took for one request. `is_inner` says that it has the mark of a request inside a body.
    """

    head: bytes
    method: bytes
    target: bytes
    headers: Pairs
    trailers: Pairs = ()
    number: int = 0
    is_inner: bool = False

    def values(self, name: bytes) -> list[bytes]:
        """The values of every line whose name a program could take for *name*."""
        wanted = normal_name(name)
        return [value for key, value in self.headers if normal_name(key.strip()) == wanted]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the proxy answered. `status` is 0 if there was no answer, or none that can be read."""

    status: int
    headers: Pairs = ()
    body: bytes = b""

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key.lower() == name), b"")


@dataclass(frozen=True, slots=True)
class Observation:
    """All that one request led to."""

    answer: Answer
    arrivals: tuple[Arrival, ...] = ()

    @property
    def has_arrived(self) -> bool:
        return bool(self.arrivals)
