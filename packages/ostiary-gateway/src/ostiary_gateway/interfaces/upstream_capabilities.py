"""Providers that follow what an upstream holds: they list it once, and then hear of every change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ostiary_gateway.interfaces.admission import UpstreamAnswer


class UpstreamLines(Protocol):
    """An answer that goes on for as long as the upstream has something to say, line by line.

    `answer` is the whole answer in its place, if the upstream refused. `batches` gives the lines as they come, without
    their ends, all that are there at once. It ends when the upstream ends the answer; it raises `ProviderError` if the
    answer is cut off, a line is too long, or nothing came for too long.
    """

    answer: UpstreamAnswer | None

    def batches(self) -> AsyncIterator[list[bytes]]: ...


class UpstreamReader(Protocol):
    """One upstream, as a provider reads it in the gateway's own name, with the gateway's own credential."""

    async def get(self, target: str, *, largest: int) -> UpstreamAnswer:
        """Raises `ProviderError` if there is no answer in time, or one of more than *largest* bytes."""

    def read_lines(self, target: str, *, longest: int, silence: float) -> AbstractAsyncContextManager[UpstreamLines]:
        """The answer to *target*; closed when the context ends. Raises `ProviderError` if there is none in time.

        *longest* is the size of a line at most, *silence* for how many seconds nothing may come.
        """


@dataclass(frozen=True, slots=True)
class FollowedFigures:
    """For the metrics. `age` is how many seconds ago the upstream was last heard; None before the first list.

    The others count since the provider was made: lists from the beginning, changes that were taken up, and objects or
    messages that could not be understood.
    """

    age: float | None
    objects: int
    lists: int = 0
    changes: int = 0
    unreadable: int = 0


@runtime_checkable
class UpstreamFollower(Protocol):
    """What follows one upstream. All calls come from one event loop.

    `follow` runs as long as the gateway serves, and goes on after failures by itself. `load` lists once, and raises
    `ProviderError`; a reload waits for it where there is nothing to adopt. `adopt` goes on from what the follower of
    the configuration before has; it says whether it could. `probe` asks whether everything may be read that it needs,
    as `ostiary_gateway.interfaces.lifecycle.Probes`. `trouble` says why there is no answer to be had now, without
    details; empty if there is one. `needs` are the requests that the gateway's credential must be allowed there.
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
    """What the gateway's own credential must be allowed at the upstream, in all namespaces."""

    verbs: tuple[str, ...]
    api_group: str
    resources: tuple[str, ...]


@runtime_checkable
class FollowsUpstream(Protocol):
    """An authorization provider whose policy is what an upstream holds. `following` is None in one that has its own."""

    following: UpstreamFollower
