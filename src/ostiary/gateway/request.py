"""The nouns of a request's way through the gateway: arrived, asked, planned, let through.

Made by the engine and read by everything that it calls. Values without behaviour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ostiary.gateway.audit.auditor import Prepared
from ostiary.gateway.authenticate import LiveToken
from ostiary.gateway.authorize import Ruling
from ostiary.gateway.headers import Scanned
from ostiary.gateway.http1.server import Exchange
from ostiary.gateway.limits import Ticket
from ostiary.gateway.proxy import Recorder
from ostiary.gateway.upstreams import Upstream
from ostiary.interfaces.attributes import AttributesMapper
from ostiary.model import RequestInfo, UserInfo


@dataclass(slots=True)
class Arrival:
    """A request that has arrived: what is known of it before anybody is asked."""

    exchange: Exchange
    scanned: Scanned
    received_at: float
    audit_id: str
    origin: str = ""


# Answers a request that we serve ourselves; returns the status that was sent.
Handler = Callable[["Passage"], Awaitable[int]]
Served = Callable[[int], None]
# The same for a path that needs no token of ours. It says when it has answered; what it returns must be waited for.
OpenHandler = Callable[[Arrival, Served], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class OwnApi:
    """Paths below `prefix` are answered by us, after the same decision as any other request."""

    prefix: str
    mapper: AttributesMapper
    handler: Handler


@dataclass(slots=True)
class Plan:
    """What is known of all requests of one token with the same request line, as long as its ruling holds."""

    ruling: Ruling
    info: RequestInfo
    user: UserInfo
    upstream: Upstream | None = None
    handler: Handler | None = None
    head: bytes = b""
    audit: Prepared | None = None
    long_running: bool = False
    required: tuple[RequestInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """What a request asks for, and where it would go. Everything in `required` must be allowed."""

    info: RequestInfo
    required: tuple[RequestInfo, ...]
    upstream: Upstream | None = None
    handler: Handler | None = None
    long_running: bool = False


@dataclass(slots=True)
class Passage:
    """A request that was let through, until it ends."""

    live: LiveToken
    plan: Plan
    arrival: Arrival
    ticket: Ticket
    recorder: Recorder | None = None
