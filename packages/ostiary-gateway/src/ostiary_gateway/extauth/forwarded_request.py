"""A request that another proxy forwards, as an exchange for the engine, whose response goes to the proxy.

For the engine it is like any other exchange: its request is the one that the proxy will forward, and its connection is
that of the proxy's client.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from ostiary.errors import ProviderError
from ostiary_gateway.extauth.dialects import ProxyDialect
from ostiary_gateway.extauth.identity_headers import NO_ASSERTION, NOBODY, cookies_answer, identity_answer
from ostiary_gateway.http1.exchange import Account, Exchange, Tunnel
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.http1.write_coalescer import OutgoingTransport
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.proxy.upstreams import Upstream

STATUS_HEADER, BODY_HEADER = b"X-Ostiary-Status", b"X-Ostiary-Body"
# The upstream's own response is unknown here: this status was sent to the proxy.
ALLOWED = 200


class ProxyConnection(Protocol):
    """The connection on which a proxy sends its query."""

    transport: OutgoingTransport
    loop: asyncio.AbstractEventLoop
    remote_address: str


class CarriedConnection:
    """The connection of a proxy's client, as far as the gateway knows it. It cannot be controlled from here."""

    __slots__ = ("account", "loop", "remote_address", "transport")

    # Shared by all. A certificate that the proxy presents does not authenticate its clients.
    forwarded_lines: bytes = b""
    peer_certificate: bytes | None = None
    draining: bool = False
    tunnel: Tunnel | None = None

    def __init__(self, proxy: ProxyConnection, address: str) -> None:
        self.transport: OutgoingTransport = proxy.transport
        self.loop: asyncio.AbstractEventLoop = proxy.loop
        self.remote_address = address or proxy.remote_address
        self.account: Account | None = None

    @property
    def write_paused(self) -> bool:
        return False

    def charge(self, account: Account) -> None:
        """Do nothing: many users share the connections of a proxy, and it limits those of its clients itself."""

    def finish(self, exchange: Exchange) -> None: ...

    def expect_body(self, exchange: Exchange) -> None: ...

    def hold_reading(self) -> None: ...

    def read_on(self) -> None: ...

    def must_read_within(self, seconds: float) -> None: ...

    def reset(self) -> None: ...

    def close_soon(self) -> None: ...


class CarriedExchange(Exchange):
    """The request that a query is about. `allow` and `respond` send the response to the proxy."""

    __slots__ = ()

    def __init__(self, proxy: ProxyConnection, request: RequestHead, address: str) -> None:
        super().__init__(CarriedConnection(proxy, address), request)
        # The body stays with the proxy.
        self.body_complete = True

    @abstractmethod
    def allow(self, identity: bytes) -> None:
        """Let the proxy forward the request with these header lines, and no others."""


class ForwardAuthExchange(CarriedExchange):
    """A `CarriedExchange` over HTTP: the response consists of a status and headers."""

    __slots__ = ("_dialect", "_question")

    def __init__(self, question: Exchange, request: RequestHead, address: str, dialect: ProxyDialect) -> None:
        super().__init__(question.connection, request, address)
        self._question = question
        self._dialect = dialect

    def allow(self, identity: bytes) -> None:
        self._send(ALLOWED, identity, b"")

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        if not self._dialect.refuses_by_403:
            self._send(status, _lines(headers), body)
            return
        # nginx passes on neither the body nor another status, so both are sent as headers, which its configuration
        # uses. JSON is on one line; in the HTML pages that we send here, a line end is a space like any other.
        one_line = b" ".join(body.split(b"\n")).strip()
        all_headers = [*headers, (STATUS_HEADER, b"%d" % status), (BODY_HEADER, one_line)]
        self._send(401 if status == 401 else 403, _lines(all_headers), b"")

    def abort(self) -> None:
        self.responder = None
        self._question.abort()

    def _send(self, status: int, lines: bytes, body: bytes) -> None:
        self.head_sent = self.ended = True
        self._question.audit_id = self.audit_id
        self._question.respond_lines(status, lines, body)


class AllowedAnswers:
    """Respond to allowed requests to one upstream of an endpoint, instead of forwarding them.

    *cleans_cookies*: requests of browsers contain our cookies, which the upstream must not get.
    """

    def __init__(
        self, dialect: ProxyDialect, extra_keys: Sequence[str], upstream: Upstream, *, cleans_cookies: bool
    ) -> None:
        self._dialect = dialect
        self._extra_keys = tuple(extra_keys)
        self._upstream = upstream
        self._cleans_cookies = cleans_cookies

    @property
    def is_identity(self) -> bool:
        """Whether a response is exactly `RequestPlan.identity`, so that it can be cached."""
        return self._upstream.assertions is None and not self._cleans_cookies

    def answer(self, records: RequestLog, answers: Responses, ctx: RequestContext) -> None:
        plan, exchange = ctx.plan, ctx.exchange
        assert isinstance(exchange, CarriedExchange)
        if not plan.identity:
            user = NOBODY if plan.public else plan.user
            plan.identity = identity_answer(user, self._dialect, self._extra_keys)
        try:
            lines = plan.identity + self._assertion(ctx)
        except ProviderError as error:
            records.conclude(ctx, 503)
            answers.send_unsigned(ctx, error)
            return
        if self._cleans_cookies:
            lines += cookies_answer(ctx.scanned.cookies, self._dialect)
        records.conclude(ctx, ALLOWED)
        if not exchange.gone:
            exchange.allow(lines)

    def _assertion(self, ctx: RequestContext) -> bytes:
        assertions = self._upstream.assertions
        if assertions is None:
            return b""
        return NO_ASSERTION if ctx.plan.public else assertions.line(ctx.token.session, ctx.plan.user)


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%s: %s\r\n" % header for header in headers])
