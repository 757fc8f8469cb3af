"""What the steps of a request hand to each other: the request on its way, its question, its plan.

Made by the engine and its steps, and read by all of them, by the doors and by the login. Values without behaviour.
"""

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
    """One request on its way through the gateway, from its arrival to its end.

    `token` and `plan` are set once it is decided on, and never for a path that needs no token of ours.
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
        # Gives back the seat or the stream that the request has taken.
        self.leave: Leave = no_place
        self.recorder: Recorder | None = None
        # What admission providers hold for it until its answer is known: see `request.object_admission`.
        self.holds: tuple[Hold, ...] = ()
        # Whether the body of a token review has been read: see `RequestPlan.reviews_token`.
        self.body_was_read = False

    def release(self) -> None:
        """Give the place back, if it still has one."""
        leave, self.leave = self.leave, no_place
        leave()


# Answers a request that we serve ourselves; returns the status that was sent.
Handler = Callable[[RequestContext], Awaitable[int]]
Served = Callable[[int], None]
# Answers a path that needs no token of ours. It calls `Served` with the status when it has answered; if it returns
# something, that must be awaited.
OpenHandler = Callable[[RequestContext, Served], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class UnauthenticatedRoute:
    """A path that needs no token of ours. `repeats`: programs send it the same headers again and again.

    `records_refusals`: its handler logs and records refusals itself, because it knows more about them.
    """

    handler: OpenHandler
    _: KW_ONLY
    repeats: bool
    records_refusals: bool


@dataclass(frozen=True, slots=True)
class BuiltinApi:
    """Paths below `prefix` are answered by us, after the same decision as any other request."""

    prefix: str
    mapper: AttributesMapper
    handler: Handler


@dataclass(frozen=True, slots=True)
class GroupRoute:
    """Who serves a path in an upstream's place: an API plugin, or we ourselves."""

    upstream: Upstream | None = None
    handler: Handler | None = None


class ApiGroups(Protocol):
    """API groups that others than the upstreams serve, and the documents that tell clients of them."""

    def __bool__(self) -> bool:
        """Whether there are any."""

    def find(self, upstream: Upstream, method: str, path: str) -> GroupRoute | None:
        """Who serves *path*, which is without the upstream's prefix; None if the upstream does."""


@dataclass(slots=True)
class RequestPlan:
    """What is known of all requests of one user with the same request line, as long as its ruling holds.

    `actor` is who asks in the name of `user`, for which `impersonation` must be allowed; `share` is the actor's, or the
    user's if there is no actor. `delegation` is what makes the token less than its owner. `at_once`: it is allowed, and
    can be forwarded as soon as it has a seat. `stream`: it counts as a stream from its beginning, and takes no seat.
    `reviews_token`: whether we answer it ourselves depends on the token in its body. `heads` counts the remembered
    heads with this plan, `latest_heads` are the digests of some that came once, and `size` is about how many bytes it
    takes. `identity` is what the proxy of a door is told about the user; empty until it is first asked for.
    `passes_on`: a request without a body needs nothing but that it is forwarded (`request.remembered.fast_forward`).
    `redirected`: without a body it is answered with a redirect to the backend itself; `target` is set then.
    `reads_capabilities`: what its object asks for must be allowed, too.
    `step_up` are the step-up rules that it falls under, with the sign-in of who sends it; None if there is none.
    `routing` counts the changes of who serves what: with another number the plan was made before the last of them.
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


# The plan of a request that has not been decided on yet.
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
    """What a request asks for, and where it would go. Everything in `required` must be allowed.

    `long_running`: its answer may take as long as it likes. `stream`: so may the exchange, and it counts as a stream.
    `target` is the path and the query that are decided on and sent on, also where the client wrote a whole URL.
    """

    info: RequestInfo
    required: tuple[RequestInfo, ...]
    target: bytes
    upstream: Upstream | None = None
    handler: Handler | None = None
    long_running: bool = False
    stream: bool = False
    # At a public path: forwarded without a user, and nothing has to be allowed.
    public: bool = False
    # Answered with a redirect to the backend itself, if it has no body.
    redirected: bool = False
    # See `RequestPlan.routing`.
    routing: int = 0
