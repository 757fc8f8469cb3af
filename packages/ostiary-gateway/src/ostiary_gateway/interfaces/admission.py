"""Admission: limits that apply to a request after it was authorized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from ostiary.model import Attributes, UserInfo
from ostiary_gateway.interfaces.store_capabilities import ObjectStore


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of an admission check. *reason* is shown to the caller; *retry_after* (seconds) turns 403 into 429."""

    admitted: bool
    reason: str = ""
    retry_after: float | None = None


class AdmissionProvider(Protocol):
    """Check requests against limits, after authorization and before the upstream.

    Providers are called in the configured order; the first that does not admit ends the check. `admit` must not block:
    it runs between reading a request and forwarding it. *size* is the announced length of the body, None if it is not
    announced (the body is not read). An exception denies the request.

    `settled` is called once for every admitted request, with the status of its response, so that a failed creation need
    not count.
    """

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission: ...

    def settled(self, attributes: Attributes, *, status: int) -> None: ...


# Providers that count stored objects.


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A request that changes objects, before it is forwarded.

    `target` is the path and query that were authorized. `headers` are the unmodified headers that describe the encoding
    of the body. `body` is None if the provider did not request it.
    """

    attributes: Attributes
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """The response of an upstream to a request of the gateway's own."""

    status: int
    content_type: str = ""
    body: bytes = field(default=b"", repr=False)


class UpstreamApi(Protocol):
    """Send requests to the upstreams, as the gateway itself or impersonating a user.

    One instance serves all concurrent calls of a worker. `upstreams` are the names of the Kubernetes upstreams.
    `objects` stores what must survive a restart; None if the token store has no objects.
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
        """Send a request and return the response.

        Raises `ProviderError` on timeout, or if the response is too large. *target* is a path and query as the upstream
        knows them. Without *user*, no user is impersonated.
        """


class WriteOutcome(Enum):
    """Outcome of a forwarded request.

    `DONE`: the upstream reported success. `NOT_DONE`: the upstream rejected it, or it was never sent. `UNKNOWN`: it was
    sent, and the response is missing or inconclusive.
    """

    DONE = "done"
    NOT_DONE = "not done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write: the upstream's status, and as much of the response body as was buffered."""

    outcome: WriteOutcome
    status: int = 0
    body: bytes | None = field(default=None, repr=False)


class Hold(Protocol):
    """A reservation for one request. `wants_body` requests the body of the response."""

    wants_body: bool

    async def settle(self, result: WriteResult) -> None:
        """Called once, after the response was sent; never if the gateway crashes before. An exception is logged."""


@dataclass(frozen=True, slots=True)
class SubjectUsage:
    """Usage of one limit by one subject. `used` and `limit` have the notation of the limit."""

    limit_name: str
    upstream: str
    subject: str
    item: str
    used: str
    limit: str


@dataclass(frozen=True, slots=True)
class CountingFigures:
    """Metrics of object counting.

    `fullest` maps each limit to the usage ratio of its fullest subject when it was last counted; 1 is full.
    `corrections` is the number of lists that differed from the count although nothing had been deleted through the
    gateway.
    """

    fullest: Mapping[str, float]
    corrections: int = 0


@runtime_checkable
class CountsObjects(Protocol):
    """An admission provider that counts stored objects, or sums of their fields.

    `covers` is called for each request that changes objects of a Kubernetes upstream, and must not block; only covered
    requests are delayed. `needs_body` requests the body; one of more than `largest_body` bytes is rejected with 413.
    `reserve` may wait and query the upstream. It returns a reservation, a denial, or a response of the upstream to send
    to the client instead. A `ProviderError` (usage could not be determined) fails the request with 503; any other
    exception with 500.

    `reconcile` runs as long as the gateway serves.
    """

    largest_body: int

    def covers(self, attributes: Attributes) -> bool: ...

    def needs_body(self, attributes: Attributes) -> bool: ...

    async def reserve(self, request: WriteRequest, api: UpstreamApi) -> Hold | Admission | UpstreamAnswer: ...

    async def reconcile(self, api: UpstreamApi) -> None: ...

    async def usage(self, api: UpstreamApi) -> list[SubjectUsage]:
        """Return the current usage, for the operator. Raises `ProviderError`."""

    def figures(self) -> CountingFigures: ...
