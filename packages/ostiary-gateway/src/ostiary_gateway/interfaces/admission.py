"""Admission: the request is allowed, but is it within bounds?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from ostiary.model import Attributes, UserInfo
from ostiary_gateway.interfaces.store_capabilities import ObjectStore


@dataclass(frozen=True, slots=True)
class Admission:
    """Yes, or no with a reason the caller may read. `retry_after` (seconds) turns the refusal from 403 into 429."""

    admitted: bool
    reason: str = ""
    retry_after: float | None = None


class AdmissionProvider(Protocol):
    """Called after authorization and before the upstream, in the order configured; the first refusal ends it.

    `size` is the announced length of the body, None where it is not announced (the body itself is not read).
    It must not wait: it is called between reading a request and sending it on. An exception refuses the request.
    `settled` is called once for every admitted request when its answer is known, so that a refused creation
    need not count.
    """

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission: ...

    def settled(self, attributes: Attributes, *, status: int) -> None: ...


# --- providers that count what is stored ---


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A request that changes objects, before it is forwarded.

    `target` is its path and query as they were decided on. `headers` are those that say how the body is to be read, as
    they came. `body` is None where the provider did not ask for it.
    """

    attributes: Attributes
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """What an upstream answered to a question of our own."""

    status: int
    content_type: str = ""
    body: bytes = field(default=b"", repr=False)


class UpstreamApi(Protocol):
    """The upstreams, as a provider asks them in the gateway's own name, or in that of a user.

    One instance serves all calls of a worker at once. `upstreams` are the names of those that are a Kubernetes API.
    `objects` is where a provider may keep what must survive a restart; None if the token store keeps no objects.
    """

    upstreams: tuple[str, ...]
    objects: ObjectStore | None

    async def ask(
        self,
        upstream: str,
        target: str,
        *,
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        user: UserInfo | None = None,
    ) -> UpstreamAnswer:
        """Raises `ProviderError` if there is no answer in time, or one that is too large.

        *target* is a path and query as the upstream knows them. Without *user* nobody is impersonated.
        """


class WriteOutcome(Enum):
    """What became of a forwarded request. `DONE`: the upstream says so. `NOT_DONE`: it refused, or was never asked.

    `UNKNOWN`: it was asked, and its answer did not come or does not tell.
    """

    DONE = "done"
    NOT_DONE = "not done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """How a request ended: with the upstream's status, and with as much of the answer's body as was kept."""

    outcome: WriteOutcome
    status: int = 0
    body: bytes | None = field(default=None, repr=False)


class Hold(Protocol):
    """What a provider holds for one request, from `reserve` on. `wants_body`: it reads the answer's body."""

    wants_body: bool

    async def settle(self, result: WriteResult) -> None:
        """Called once, after the client has its answer; never if the gateway dies before. An exception is logged."""


@dataclass(frozen=True, slots=True)
class SubjectUsage:
    """What one subject of a limit uses. `used` and `limit` are written as the limit is."""

    limit_name: str
    upstream: str
    subject: str
    item: str
    used: str
    limit: str


@dataclass(frozen=True, slots=True)
class CountingFigures:
    """For the metrics. `fullest`: by limit, how full its fullest subject was when it was last counted; 1 is full.

    `corrections`: how many lists told something else than was counted, though nothing had been deleted here.
    """

    fullest: Mapping[str, float]
    corrections: int = 0


@runtime_checkable
class CountsObjects(Protocol):
    """An admission provider that counts what is stored: objects, and sums of their fields.

    `covers` is called for each request that changes objects of a Kubernetes upstream, and must not wait; only a covered
    request is held up. `needs_body` says whether the body must be read first; one beyond `largest_body` bytes is
    refused with 413. Then `reserve` is called, which may wait and ask the upstream. It returns what it holds; a
    refusal; or an answer of the upstream that the client is to get in place of its own. A `ProviderError` means that it
    could not be counted, and refuses with 503; any other exception with 500. `reconcile` runs as long as the gateway
    serves.
    """

    largest_body: int

    def covers(self, attributes: Attributes) -> bool: ...

    def needs_body(self, attributes: Attributes) -> bool: ...

    async def reserve(self, request: WriteRequest, api: UpstreamApi) -> Hold | Admission | UpstreamAnswer: ...

    async def reconcile(self, api: UpstreamApi) -> None: ...

    async def usage(self, api: UpstreamApi) -> list[SubjectUsage]:
        """What stands now, for an operator; raises `ProviderError`."""

    def figures(self) -> CountingFigures: ...
