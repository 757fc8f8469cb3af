"""Forward auth below ``/doors``: authenticates the other proxy, and passes the request to the engine of its upstream.

Each endpoint and upstream has an engine with the same tokens, policy, limits and records as the listener's; it responds
instead of forwarding. A proxy repeats identical queries, so parsed queries are cached with their request head.

A caller that is not the proxy, names an unknown endpoint, or omits required headers gets a uniform 503. The operator
finds the reason in the log and in the metrics.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping

from ostiary.core.clock import Clock
from ostiary.wire import status
from ostiary_gateway.config.extauth import DoorSettings
from ostiary_gateway.config.kinds import DOORS_PREFIX
from ostiary_gateway.extauth.callers import DoorCallers, InvalidRequestLog, presented_secret
from ostiary_gateway.extauth.dialects import DIALECTS, ProxyDialect, is_sign_in_path
from ostiary_gateway.extauth.forwarded_request import ALLOWED, ForwardAuthExchange
from ostiary_gateway.extauth.request import BadQuestion, CarriedRequest, carried_request
from ostiary_gateway.http1.exchange import (
    STATUS_LINES,
    ActiveExchange,
    ClientConnection,
    Exchange,
    PassingConnection,
    PassOn,
)
from ostiary_gateway.http1.request_head import RequestHead, RequestRefused
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.engine import Engine
from ostiary_gateway.proxy.target import path_of

log = logging.getLogger("ostiary.gateway")

Handle = Callable[[Exchange], None]

ASKED, REFUSED, UNKNOWN_CALLER, BAD_QUESTION = "asked", "refused", "unknown_caller", "bad_question"
_BELOW_DOORS = DOORS_PREFIX.encode() + b"/"
_DOOR_PATH = re.compile(_BELOW_DOORS + rb"([^/?]*)/([^/?]*)")
# The bytes before and after the identity, as `Exchange.respond_lines` writes them.
_ALLOWED_LINE, _NO_BODY = STATUS_LINES[ALLOWED], b"Content-Length: 0\r\n\r\n"
NO_DOOR = status.failure(503, "ServiceUnavailable", "the permission cannot be asked for here")


class Door:
    """One endpoint for one proxy, with its secret. `engines` are those of its upstreams, by name.

    `applications` are the names of the web applications among the upstreams.
    """

    def __init__(
        self,
        settings: DoorSettings,
        engines: Mapping[bytes, Engine],
        clock: Clock,
        applications: frozenset[bytes] = frozenset(),
    ) -> None:
        self.applications = applications
        self.name = settings.name
        self.dialect: ProxyDialect = DIALECTS[settings.proxy]
        self.engines = engines
        self.callers = DoorCallers(settings.callers, clock)

    def objection_to(self, certificate: bytes | None, presented: bytes) -> str:
        """Return why the sender is not this endpoint's proxy, for the operator; empty if it is."""
        try:
            is_proxy = self.callers.include(certificate, presented)
        except OSError as error:
            return f"callers.tokenFile cannot be read: {error.strerror}"
        return "" if is_proxy else "the question has not the secret of the door, nor one of its client certificates"


class _RememberedQuestion:
    """A parsed query, cached with its request head. Valid only for the handler `made_by`."""

    __slots__ = ("address", "door", "engine", "made_by", "request", "secret")

    def __init__(
        self, made_by: DoorHandler, door: Door, engine: Engine, secret: bytes, carried: CarriedRequest
    ) -> None:
        self.made_by, self.door, self.engine, self.secret = made_by, door, engine, secret
        self.request, self.address = carried.head, carried.address


class DoorHandler:
    """Serve all forward-auth endpoints of one configuration. Other requests go to *otherwise*."""

    def __init__(
        self, doors: Mapping[bytes, Door], otherwise: Handle, pass_on: PassOn | None, metrics: Metrics, clock: Clock
    ) -> None:
        self._doors = doors
        self._otherwise = otherwise
        self._pass_on = pass_on
        self._metrics = metrics
        self._monotonic = clock.monotonic
        self._vain = InvalidRequestLog(metrics, clock)

    def handle(self, exchange: Exchange) -> None:
        """Respond to a request, now or later. Like an engine, it never raises."""
        request = exchange.request
        question = request.known
        if type(question) is _RememberedQuestion and question.made_by is self:
            if self._is_proxy(question.door, exchange, question.secret):
                self._ask(question, exchange)
        elif question is None and path_of(request.target, request.host).startswith(_BELOW_DOORS):
            try:
                self._receive(exchange)
            except Exception as error:
                log.error("a question failed inside the gateway", extra={"cause": type(error).__name__}, exc_info=error)
                self._reject(exchange, "", BAD_QUESTION, "the gateway failed")
        else:
            self._otherwise(exchange)

    def answer_known(self, connection: ClientConnection, request: RequestHead) -> bytes:
        """Return the whole response to a cached query if it is a plain allow; otherwise empty, and `handle` responds.

        Never raises. Anything unusual is left to `handle`, which reports it to the operator.
        """
        question = request.known
        if type(question) is not _RememberedQuestion or question.made_by is not self:
            return b""
        door = question.door
        try:
            now = self._monotonic()
            if not door.callers.include(connection.peer_certificate, question.secret, now):
                return b""
            address = question.address or connection.remote_address
            identity = question.engine.allow_again(question.request, address, now)
        except Exception as error:
            log.error("a question failed inside the gateway", extra={"cause": type(error).__name__}, exc_info=error)
            return b""
        if not identity:
            return b""
        self._metrics.door_questions.inc(door.name, ASKED)
        return _ALLOWED_LINE + identity + _NO_BODY

    def pass_on(self, connection: PassingConnection, request: RequestHead, own_lines: bytes) -> ActiveExchange | None:
        """Like `Engine.pass_on`, but leaves forward-auth requests to `handle`."""
        if request.known is None and path_of(request.target, request.host).startswith(_BELOW_DOORS):
            return None
        return None if self._pass_on is None else self._pass_on(connection, request, own_lines)

    def _receive(self, exchange: Exchange) -> None:
        request = exchange.request
        name, upstream, behind = _parts(path_of(request.target, request.host))
        door = self._doors.get(name)
        if door is None:
            self._reject(exchange, "", BAD_QUESTION, "there is no such door")
            return
        secret = presented_secret(request.headers)
        if not self._is_proxy(door, exchange, secret):
            return
        engine = door.engines.get(upstream)
        if engine is None:
            self._reject(exchange, door.name, BAD_QUESTION, "the door has no such upstream")
            return
        try:
            carried = carried_request(door.dialect, request, behind)
        except BadQuestion as error:
            self._reject(exchange, door.name, BAD_QUESTION, str(error))
        except RequestRefused as refusal:
            self._refuse(door, engine, exchange, refusal)
        else:
            if upstream in door.applications and is_sign_in_path(path_of(carried.head.target, carried.head.host)):
                # Otherwise the upstream would get the code in it, and browsers would be redirected in a loop.
                cause = "the proxy asks about the way back from sign-in, which it must send to the gateway"
                self._reject(exchange, door.name, BAD_QUESTION, cause)
                return
            question = _RememberedQuestion(self, door, engine, secret, carried)
            self._ask(question, exchange)
            _remember(question, request)

    def _ask(self, question: _RememberedQuestion, exchange: Exchange) -> None:
        door = question.door
        self._metrics.door_questions.inc(door.name, ASKED)
        question.engine.handle(ForwardAuthExchange(exchange, question.request, question.address, door.dialect))

    def _is_proxy(self, door: Door, exchange: Exchange, secret: bytes) -> bool:
        """Report whether the proxy of *door* is the sender. If not, send a response."""
        cause = door.objection_to(exchange.connection.peer_certificate, secret)
        if cause:
            self._reject(exchange, door.name, UNKNOWN_CALLER, cause)
        return not cause

    def _reject(self, exchange: Exchange, door: str, result: str, cause: str) -> None:
        """Respond to a query that describes no valid request."""
        self._vain.record(door, result, cause, exchange.connection.remote_address)
        code, body = NO_DOOR
        exchange.respond(code, [(b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store")], body)

    def _refuse(self, door: Door, engine: Engine, exchange: Exchange, refusal: RequestRefused) -> None:
        """Reject a client request that our own listener would not have parsed either."""
        self._metrics.door_questions.inc(door.name, REFUSED)
        line = engine.record_unreadable(exchange.connection, None, refusal)
        code, body = status.failure(refusal.status, "", refusal.message)
        carried = ForwardAuthExchange(exchange, exchange.request, "", door.dialect)
        name, _, value = line.partition(b": ")
        carried.respond(code, [(name, value.strip()), (b"Content-Type", b"application/json")], body)


def _remember(question: _RememberedQuestion, request: RequestHead) -> None:
    """Cache the parsed query with its request head, once the engine has cached the forwarded request."""
    carried = question.request
    if carried.known is not None:
        request.known = question
        request.known_owner, request.known_size = carried.known_owner, carried.known_size + carried.size
        # The cached head contains neither the token nor the secret: their digests are sufficient.
        request.headers = []


def _parts(target: bytes) -> tuple[bytes, bytes, bytes]:
    """Split ``/doors/NAME/UPSTREAM/rest?query``. The rest keeps its slash and its query."""
    path = _DOOR_PATH.match(target)
    return (b"", b"", b"") if path is None else (path[1], path[2], target[path.end() :])
