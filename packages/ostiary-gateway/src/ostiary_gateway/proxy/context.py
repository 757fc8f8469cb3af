"""Values that the steps of a request share: its context, attributes and plan, and the types of handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from ostiary.core.scopes import Delegation
from ostiary.model import RequestInfo, UserInfo, Verdict
from ostiary_gateway.audit.auditor import Prepared
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.authorization.cached_decision import CachedDecision
from ostiary_gateway.authorization.step_up import AppliedRules
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.headers import FilteredHeaders
from ostiary_gateway.interfaces.admission import Hold
from ostiary_gateway.interfaces.attributes import AttributesMapper
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.limits.user_usage import Leave, UserUsage, no_place
from ostiary_gateway.proxy.recorder import Recorder
from ostiary_gateway.proxy.upstreams import Upstream


class RequestContext:
    """State of one request in the gateway, from the parsed head to its audit event.

    `token` and `plan` are set once the request is authorized, and never for an unauthenticated route.
    """

    __slots__ = (
        "audit_id",
        "body_was_read",
        "exchange",
        "holds",
        "leave",
        "plan",
        "received_at",
        "recorder",
        "scanned",
        "token",
    )

    token: CachedToken

    def __init__(self, exchange: Exchange, received_at: float, audit_id: str) -> None:
        self.exchange = exchange
        self.received_at = received_at
        self.audit_id = audit_id
        self.scanned = NOT_SCANNED
        self.plan = NO_PLAN
        # Releases the permit or the stream that the request holds.
        self.leave: Leave = no_place
        self.recorder: Recorder | None = None
        # Held by admission providers until the response is known: see `proxy.quota_gate`.
        self.holds: tuple[Hold, ...] = ()
        # Whether the body of a token review was read: see `RequestPlan.reviews_token`.
        self.body_was_read = False

    def release(self) -> None:
        """Release the permit, if the request still holds one."""
        leave, self.leave = self.leave, no_place
        leave()


# Serves a request inside the gateway; returns the status that was sent.
Handler = Callable[[RequestContext], Awaitable[int]]
Served = Callable[[int], None]
# Serves an unauthenticated route. Calls `Served` with the status after it has responded. The caller awaits a returned
# awaitable.
OpenHandler = Callable[[RequestContext, Served], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class UnauthenticatedRoute:
    """A path that requires no token of the gateway.

    `repeats`: clients send identical headers repeatedly, so heads are worth caching. `records_refusals`: the handler
    logs and records failed requests itself, because it has more details.
    """

    handler: OpenHandler
    _: KW_ONLY
    repeats: bool
    records_refusals: bool


@dataclass(frozen=True, slots=True)
class BuiltinApi:
    """An API that the gateway serves below `prefix`. Requests are authorized like any other."""

    prefix: str
    mapper: AttributesMapper
    handler: Handler


@dataclass(frozen=True, slots=True)
class GroupRoute:
    """Serves a path of an upstream instead of the upstream: an API plugin, or a handler of the gateway."""

    upstream: Upstream | None = None
    handler: Handler | None = None


class ApiGroups(Protocol):
    """API groups that are not served by the upstreams, and their discovery documents."""

    def __bool__(self) -> bool:
        """Whether there are any."""

    def find(self, upstream: Upstream, method: str, path: str) -> GroupRoute | None:
        """Return the route of *path*, which is without the upstream's prefix; None if the upstream serves it."""


@dataclass(slots=True)
class RequestPlan:
    """What all requests of one user with the same request line have in common, valid as long as its decision.

    actor: who sends the request on behalf of `user`; the permissions in `impersonation` are required for that.
    share: the usage of the actor, or of the user if there is no actor.
    delegation: the scope of the token.
    at_once: allowed, and can be forwarded as soon as it has a permit.
    stream: counts as a stream from the beginning and takes no concurrency permit.
    reviews_token: the token in the body determines whether the gateway responds itself.
    heads: number of cached heads with this plan. latest_heads: digests of recent heads that were seen once.
    size: estimated size in bytes.
    identity: the response for external authorization; empty until it is first requested.
    passes_on: a request without a body can take the fast path (`proxy.fast_path`).
    redirected: a request without a body is redirected to the backend itself; `target` is set then.
    reads_capabilities: the capabilities that the object in the body uses must be allowed, too.
    step_up: the step-up rules that apply, with the sign-in of the sender; None if there are none.
    routing: revision of the routing table. A plan with another revision is outdated.
    """

    ruling: CachedDecision
    info: RequestInfo
    user: UserInfo
    share: UserUsage
    upstream: Upstream | None
    handler: Handler | None
    audit: Prepared | None
    required: tuple[RequestInfo, ...]
    _: KW_ONLY
    long_running: bool
    stream: bool
    reviews_token: bool
    actor: UserInfo | None = None
    impersonation: tuple[RequestInfo, ...] = ()
    delegation: Delegation | None = None
    public: bool = False
    redirected: bool = False
    reads_capabilities: bool = False
    head: bytes = b""
    at_once: bool = False
    passes_on: bool = False
    heads: int = 0
    latest_heads: set[bytes] = field(default_factory=set)
    size: int = 0
    identity: bytes = b""
    target: bytes = b""
    routing: int = 0
    step_up: AppliedRules | None = None


# The plan of a request that is not authorized yet.
NO_PLAN = RequestPlan(
    CachedDecision(Verdict.NO_OPINION),
    RequestInfo("", "", ""),
    UserInfo(""),
    Limits().share(UserInfo("")),
    upstream=None,
    handler=None,
    audit=None,
    required=(),
    long_running=False,
    stream=False,
    reviews_token=False,
)
NOT_SCANNED = FilteredHeaders()


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """The attributes of a request and its route. Everything in `required` must be allowed.

    `long_running`: there is no response timeout. `stream`: the request counts as a stream. `target` is the path and
    query that are authorized and forwarded, also if the client sent an absolute URL.
    """

    info: RequestInfo
    required: tuple[RequestInfo, ...]
    target: bytes
    upstream: Upstream | None = None
    handler: Handler | None = None
    long_running: bool = False
    stream: bool = False
    # Public path: forwarded without a user, and nothing has to be allowed.
    public: bool = False
    # Redirected to the backend itself, if the request has no body.
    redirected: bool = False
    # See `RequestPlan.routing`.
    routing: int = 0
