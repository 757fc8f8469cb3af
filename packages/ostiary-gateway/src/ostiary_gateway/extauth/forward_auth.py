"""Receives the questions of other proxies, below ``/doors``: checks who asks, and hands the request to the engine.

Called by the listener's connections, before the engine. Behind each door and upstream is an engine of the same kind,
with the same tokens, policy, limits and records; it only answers where the other forwards. A proxy asks about equal
requests again and again: what was read from a question lies with its remembered head.

Whoever is not the proxy, asks about an unknown door, or leaves out what a proxy of the kind must say, gets one and the
same answer: 503, because nothing could be asked. The operator finds the reason in the log and in the metrics.
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
# What is before and after the identity, as `Exchange.respond_lines` writes it.
_ALLOWED_LINE, _NO_BODY = STATUS_LINES[ALLOWED], b"Content-Length: 0\r\n\r\n"
NO_DOOR = status.failure(503, "ServiceUnavailable", "the permission cannot be asked for here")


class Door:
    """One kind of proxy, with its secret. `engines` are those of its upstreams, by name.

    `applications` are the names of the web applications among them.
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
        """Why whoever presents these is not the proxy of this door, for the operator; empty if they are."""
        try:
            is_proxy = self.callers.include(certificate, presented)
        except OSError as error:
            return f"callers.tokenFile cannot be read: {error.strerror}"
        return "" if is_proxy else "the question has not the secret of the door, nor one of its client certificates"


class _RememberedQuestion:
    """What was read from a head, for the next time that the same bytes come. It is good for `made_by` alone."""

    __slots__ = ("address", "door", "engine", "made_by", "request", "secret")

    def __init__(
        self, made_by: DoorHandler, door: Door, engine: Engine, secret: bytes, carried: CarriedRequest
    ) -> None:
        self.made_by, self.door, self.engine, self.secret = made_by, door, engine, secret
        self.request, self.address = carried.head, carried.address


class DoorHandler:
    """All doors of one configuration; whatever is not for them goes to *otherwise*."""

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
        """Answer a request, now or later. It never raises, as an engine does not."""
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
        """The whole answer to a question that came before, if that is a simple yes; else empty, and `handle` answers.

        It never raises. Whatever is unusual here is left to `handle`, which tells the operator.
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
        """As the engine does; what is for a door is left to `handle`."""
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
                # The upstream would get the code that is in it, and browsers would be led around in circles.
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
        """Whether the proxy of *door* asks. If it does not, it is answered."""
        cause = door.objection_to(exchange.connection.peer_certificate, secret)
        if cause:
            self._reject(exchange, door.name, UNKNOWN_CALLER, cause)
        return not cause

    def _reject(self, exchange: Exchange, door: str, result: str, cause: str) -> None:
        """Answer a question that says nothing about a request."""
        self._vain.record(door, result, cause, exchange.connection.remote_address)
        code, body = NO_DOOR
        exchange.respond(code, [(b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store")], body)

    def _refuse(self, door: Door, engine: Engine, exchange: Exchange, refusal: RequestRefused) -> None:
        """The client sent to the proxy what our own listener would not have read either."""
        self._metrics.door_questions.inc(door.name, REFUSED)
        line = engine.record_unreadable(exchange.connection, None, refusal)
        code, body = status.failure(refusal.status, "", refusal.message)
        carried = ForwardAuthExchange(exchange, exchange.request, "", door.dialect)
        name, _, value = line.partition(b": ")
        carried.respond(code, [(name, value.strip()), (b"Content-Type", b"application/json")], body)


def _remember(question: _RememberedQuestion, request: RequestHead) -> None:
    """Once the engine behind the door remembers the carried request, the question is remembered with its own head."""
    carried = question.request
    if carried.known is not None:
        request.known = question
        request.known_owner, request.known_size = carried.known_owner, carried.known_size + carried.size
        # What is kept holds neither the token nor the secret: their digests say as much to us.
        request.headers = []


def _parts(target: bytes) -> tuple[bytes, bytes, bytes]:
    """``/doors/NAME/UPSTREAM/behind?query`` in parts; what is behind keeps its slash, and its query."""
    path = _DOOR_PATH.match(target)
    return (b"", b"", b"") if path is None else (path[1], path[2], target[path.end() :])
