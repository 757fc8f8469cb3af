"""Providers that follow the content of an upstream: list it once, then watch it for changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ostiary_gateway.interfaces.admission import UpstreamAnswer


class UpstreamLines(Protocol):
    """A streaming response of the upstream, line by line.

    `answer` is a complete error response instead, if the upstream returned one. `batches` yields the lines without
    their ends, as many at a time as are available. It ends when the upstream ends the response; it raises
    `ProviderError` if the response is truncated, a line is too long, or nothing arrived for too long.
    """

    answer: UpstreamAnswer | None

    def batches(self) -> AsyncIterator[list[bytes]]: ...


class UpstreamReader(Protocol):
    """Read one upstream with the gateway's own credential, without impersonation."""

    async def get(self, target: str, *, largest: int) -> UpstreamAnswer:
        """Return the response. Raises `ProviderError` on timeout, or if it has more than *largest* bytes."""

    def read_lines(self, target: str, *, longest: int, silence: float) -> AbstractAsyncContextManager[UpstreamLines]:
        """Return the response to *target*; closed when the context ends. Raises `ProviderError` on timeout.

        *longest* is the maximum size of a line, *silence* the maximum number of seconds without data.
        """


@dataclass(frozen=True, slots=True)
class FollowedFigures:
    """Metrics of a follower. `age` is the seconds since the upstream last sent something; None before the first list.

    The others count since the provider was created: complete lists, applied changes, and objects or messages that could
    not be parsed.
    """

    age: float | None
    objects: int
    lists: int = 0
    changes: int = 0
    unreadable: int = 0


@runtime_checkable
class UpstreamFollower(Protocol):
    """Follow one upstream. All calls come from one event loop.

    `follow` runs as long as the gateway serves, and recovers from failures by itself. `load` lists once, and raises
    `ProviderError`; a reload waits for it if there is no state to adopt. `adopt` takes over the state of the previous
    configuration's follower, and returns whether it could. `probe` checks that everything required is readable, like
    `ostiary_gateway.interfaces.lifecycle.Probes`. `trouble` says, without details, why the state is unavailable; empty
    if it is available. `needs` are the requests that the gateway's credential must be allowed to make.
    """

    upstream: str

    async def follow(self, reader: UpstreamReader) -> None: ...

    async def load(self, reader: UpstreamReader) -> None: ...

    async def probe(self, reader: UpstreamReader) -> str: ...

    def adopt(self, old: UpstreamFollower) -> bool: ...

    def trouble(self) -> str: ...

    def figures(self) -> FollowedFigures: ...

    def needs(self) -> NeededAccess: ...


@dataclass(frozen=True, slots=True)
class NeededAccess:
    """What the gateway's own credential must be allowed to do at the upstream, in all namespaces."""

    verbs: tuple[str, ...]
    api_group: str
    resources: tuple[str, ...]


@runtime_checkable
class FollowsUpstream(Protocol):
    """An authorization provider whose policy is in an upstream. `following` is None in one with its own policy."""

    following: UpstreamFollower
