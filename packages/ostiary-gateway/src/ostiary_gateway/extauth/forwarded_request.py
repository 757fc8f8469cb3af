"""A request that another proxy carries, as the engine sees it; and the engine's answer, as the proxy gets it.

Made by the handler for each question. To the engine it is an exchange like any other: its request is the one that the
proxy will forward, its connection comes from the proxy's client, and its answer goes to the proxy.
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
# The upstream's own answer is not known here: this is what the proxy was told.
ALLOWED = 200


class ProxyConnection(Protocol):
    """The connection that a proxy asks on."""

    transport: OutgoingTransport
    loop: asyncio.AbstractEventLoop
    remote_address: str


class CarriedConnection:
    """The connection of a proxy's client, as far as the gateway can know it. Nothing can be done to it from here."""

    __slots__ = ("account", "loop", "remote_address", "transport")

    # Of all of them; a certificate that the proxy presents says nothing about its clients.
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
        """Many users share the connections of a proxy, and those of its clients are its own to count."""

    def finish(self, exchange: Exchange) -> None: ...

    def expect_body(self, exchange: Exchange) -> None: ...

    def hold_reading(self) -> None: ...

    def read_on(self) -> None: ...

    def must_read_within(self, seconds: float) -> None: ...

    def reset(self) -> None: ...

    def close_soon(self) -> None: ...


class CarriedExchange(Exchange):
    """The request that a proxy asks about, and the answer to its question; `allow` and `respond` tell the proxy."""

    __slots__ = ()

    def __init__(self, proxy: ProxyConnection, request: RequestHead, address: str) -> None:
        super().__init__(CarriedConnection(proxy, address), request)
        # No body comes here, whatever the client sends to the proxy.
        self.body_complete = True

    @abstractmethod
    def allow(self, identity: bytes) -> None:
        """Tell the proxy to forward the request with these header lines, and nothing else."""


class ForwardAuthExchange(CarriedExchange):
    """The same where the question is a request of HTTP, which is answered with the status and the headers."""

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
        # nginx hands on neither the body nor another status, so both are headers, from which its configuration takes
        # them. JSON is on one line; to the pages that we send here, an end of a line is a space like any other.
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
    """Answers allowed requests to one upstream of a door, in the place of forwarding them.

    *cleans_cookies*: there are cookies of ours in the requests of browsers, which the upstream must not get.
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
        """Whether an answer is `RequestPlan.identity` and nothing else, so that it can be given again."""
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
