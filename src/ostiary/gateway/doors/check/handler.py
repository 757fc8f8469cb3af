"""Receives the calls of ``Authorization/Check``: checks who asks, and hands the request to the engine behind the door.

Called by the connections of the gRPC listener. As at the other doors (`doors.forward.handler`), whoever is not the
proxy, or does not say what it must say, gets one and the same answer: the call fails, and Envoy makes 503 of that. The
operator finds the reason in the log and in the metrics.

No two calls have the same bytes: each has an id, the time and the port of the client. So a call is recognised by what
is read from it: the headers, the address, the door and the upstream.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256

from ostiary.core.caching.bounded import BoundedByOwner
from ostiary.core.clock import Clock
from ostiary.gateway.doors.check.call import Call
from ostiary.gateway.doors.check.carried import CheckExchange
from ostiary.gateway.doors.check.framing import PERMISSION_DENIED
from ostiary.gateway.doors.check.question import (
    DOOR_EXTENSION,
    UPSTREAM_EXTENSION,
    carried_request,
    client_address,
)
from ostiary.gateway.doors.forward.handler import ASKED, BAD_QUESTION, REFUSED, UNKNOWN_CALLER, Door
from ostiary.gateway.doors.forward.question import BadQuestion, CarriedRequest
from ostiary.gateway.doors.forward.vain_questions import VainQuestions
from ostiary.gateway.http1.listen_limits import ListenLimits
from ostiary.gateway.http1.request_head import (
    KNOWN_BYTES,
    KNOWN_BYTES_PER_OWNER,
    LONGEST_KNOWN,
    RequestHead,
    RequestRefused,
)
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.request.engine import Engine
from ostiary.wire import status
from ostiary.wire.codec.protobuf_fields import ProtobufError
from ostiary.wire.envoy_check import CheckRequest, check_request, header_map

log = logging.getLogger("ostiary.gateway")

NO_DOOR = b"the permission cannot be asked for here"
_FIXED_BYTES = 1500
NO_REQUEST = RequestHead()


class CheckHandler:
    """All doors of one configuration that are asked by gRPC."""

    def __init__(self, doors: Mapping[bytes, Door], limits: ListenLimits, metrics: Metrics, clock: Clock) -> None:
        self._doors = doors
        self._limits = limits
        self._metrics = metrics
        self._vain = VainQuestions(metrics, clock)
        self._known: BoundedByOwner[bytes, CarriedRequest] = BoundedByOwner(KNOWN_BYTES, KNOWN_BYTES_PER_OWNER)

    def handle(self, call: Call) -> None:
        """Answer a call, now or later. It never raises."""
        try:
            self._receive(call)
        except Exception as error:
            log.error("a question failed inside the gateway", extra={"cause": type(error).__name__}, exc_info=error)
            self._reject(call, "", BAD_QUESTION, "the gateway failed")

    def _receive(self, call: Call) -> None:
        try:
            question = check_request(call.message)
        except ProtobufError as error:
            self._reject(call, "", BAD_QUESTION, f"the message cannot be read: {error}")
            return
        # All that is wanted of it has been read.
        call.message = b""
        door = self._doors.get(question.context.get(DOOR_EXTENSION, b""))
        if door is None:
            self._reject(call, "", BAD_QUESTION, "the route names no door that is asked by gRPC")
            return
        if not self._is_proxy(door, call):
            return
        engine = door.engines.get(question.context.get(UPSTREAM_EXTENSION, b""))
        if engine is None:
            self._reject(call, door.name, BAD_QUESTION, "the route names no upstream of the door")
            return
        try:
            self._ask(door, engine, call, question)
        except (BadQuestion, ProtobufError) as error:
            self._reject(call, door.name, BAD_QUESTION, str(error))
        except RequestRefused as refusal:
            self._refuse(door, engine, call, refusal)

    def _ask(self, door: Door, engine: Engine, call: Call, question: CheckRequest) -> None:
        key = _key(question)
        request = self._known.get(key)
        if request is None:
            address = client_address(question.address)
            request = carried_request(header_map(question.headers), address, self._limits)
        self._metrics.door_questions.inc(door.name, ASKED)
        engine.handle(CheckExchange(call, request.head, request.address))
        head = request.head
        if head.known is not None and len(question.headers) <= LONGEST_KNOWN and key not in self._known:
            # Once the engine remembers it. What is kept holds no token: its digest says as much to us.
            size = _FIXED_BYTES + head.size + head.known_size
            self._known.keep(key, request, owner=head.known_owner, size=size)

    def _is_proxy(self, door: Door, call: Call) -> bool:
        """Whether the proxy of *door* asks. If it does not, it is answered."""
        cause = door.objection_to(call.connection.peer_certificate, call.secret)
        if cause:
            self._reject(call, door.name, UNKNOWN_CALLER, cause)
        return not cause

    def _reject(self, call: Call, door: str, result: str, cause: str) -> None:
        """Fail a call that says nothing about a request."""
        self._vain.record(door, result, cause, call.connection.remote_address)
        call.fail(PERMISSION_DENIED, NO_DOOR)

    def _refuse(self, door: Door, engine: Engine, call: Call, refusal: RequestRefused) -> None:
        """The client sent to Envoy what our own listener would not have read either."""
        self._metrics.door_questions.inc(door.name, REFUSED)
        carried = CheckExchange(call, NO_REQUEST, "")
        line = engine.record_unreadable(carried.connection, None, refusal)
        code, body = status.failure(refusal.status, "", refusal.message)
        name, _, value = line.partition(b": ")
        carried.respond(code, [(name, value.strip()), (b"Content-Type", b"application/json")], body)


def _key(question: CheckRequest) -> bytes:
    """What tells a question from another; no part can run into the next."""
    context = question.context
    parts = (context[DOOR_EXTENSION], context[UPSTREAM_EXTENSION], question.address, question.headers)
    return sha256(b"".join([b"%d:%s" % (len(part), part) for part in parts])).digest()
