"""The nouns of a request's way through the gateway: arrived, asked, planned, let through.

Made by the engine and read by everything that it calls. Values without behaviour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ostiary.gateway.admit.share import Leave, no_place
from ostiary.gateway.audit.auditor import Prepared
from ostiary.gateway.authenticate.tokens_in_use import TokenInUse
from ostiary.gateway.authorize.ruling import Ruling
from ostiary.gateway.http1.exchange import Exchange
from ostiary.gateway.http1.headers import Scanned
from ostiary.gateway.upstream.recorder import Recorder
from ostiary.gateway.upstream.upstreams import Upstream
from ostiary.interfaces.attributes import AttributesMapper
from ostiary.model import RequestInfo, UserInfo, Verdict


class Passage:
    """One request's way through the gateway, from its arrival to its end.

    `token` and `plan` are there once it is decided on; a path that asks for no token of ours never has them.
    """

    __slots__ = (
        "audit_id",
        "body_was_read",
        "exchange",
        "leave",
        "plan",
        "received_at",
        "recorder",
        "scanned",
        "token",
    )

    token: TokenInUse

    def __init__(self, exchange: Exchange, received_at: float, audit_id: str) -> None:
        self.exchange = exchange
        self.received_at = received_at
        self.audit_id = audit_id
        self.scanned = NOT_SCANNED
        self.plan = NO_PLAN
        # Gives the place back that the request has among those being served.
        self.leave: Leave = no_place
        self.recorder: Recorder | None = None
        # Whether a review of a token has been looked at: see `Plan.reviews_token`.
        self.body_was_read = False

    def release(self) -> None:
        """Give the place back, if it still has one."""
        leave, self.leave = self.leave, no_place
        leave()


# Answers a request that we serve ourselves; returns the status that was sent.
Handler = Callable[[Passage], Awaitable[int]]
Served = Callable[[int], None]
# The same for a path that needs no token of ours. It says when it has answered; what it returns must be waited for.
OpenHandler = Callable[[Passage, Served], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class OpenPath:
    """A path that needs no token of ours. `repeats`: programs ask it with the same headers again and again.

    `records_refusals`: it logs and records by itself whom it refuses, because it knows more about them.
    """

    handler: OpenHandler
    repeats: bool = False
    records_refusals: bool = False


@dataclass(frozen=True, slots=True)
class OwnApi:
    """Paths below `prefix` are answered by us, after the same decision as any other request."""

    prefix: str
    mapper: AttributesMapper
    handler: Handler


@dataclass(slots=True)
class Plan:
    """What is known of all requests of one user with the same request line, as long as its ruling holds.

    `at_once`: it is allowed, and nothing has to be done but to count it and to send it on. `stream`: it counts as a
    stream from its beginning, and takes no seat. `actor` is who asks in the name of `user`, for which `impersonation`
    must be allowed. `reviews_token`: whether we answer it ourselves depends on the token in its body.
    """

    ruling: Ruling
    info: RequestInfo
    user: UserInfo
    upstream: Upstream | None = None
    handler: Handler | None = None
    head: bytes = b""
    audit: Prepared | None = None
    long_running: bool = False
    stream: bool = False
    required: tuple[RequestInfo, ...] = ()
    actor: UserInfo | None = None
    impersonation: tuple[RequestInfo, ...] = ()
    at_once: bool = False
    reviews_token: bool = False
    heads: int = 0
    size: int = 0


# Of a request that nobody has worked out yet.
NO_PLAN = Plan(Ruling(Verdict.NO_OPINION), RequestInfo("", "", ""), UserInfo(""))
NOT_SCANNED = Scanned()


@dataclass(frozen=True, slots=True)
class Question:
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
