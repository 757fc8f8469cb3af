"""Envoy's ``ext_authz`` over gRPC: the handler of ``Authorization/Check``.

It authenticates Envoy and passes the request to the engine of the upstream. Endpoints, callers and identity headers are
those of `forward_auth`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary.core.clock import Clock
from ostiary.wire import status
from ostiary_gateway.extauth.callers import InvalidRequestLog
from ostiary_gateway.extauth.dialects import ORIGINAL_UPGRADE
from ostiary_gateway.extauth.forward_auth import ASKED, BAD_QUESTION, REFUSED, UNKNOWN_CALLER, Door
from ostiary_gateway.extauth.forwarded_request import CarriedExchange
from ostiary_gateway.extauth.grpc import INTERNAL, PERMISSION_DENIED, Call
from ostiary_gateway.extauth.request import METHODS, BadQuestion, CarriedRequest
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.listen_limits import ListenLimits
from ostiary_gateway.http1.request_head import (
    KNOWN_BYTES,
    KNOWN_BYTES_PER_OWNER,
    LONGEST_KNOWN,
    NOT_SERVED,
    UPGRADES,
    RequestHead,
    RequestRefused,
)
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.engine import Engine
from ostiary_gateway.wire.envoy_check import (
    CheckRequest,
    allowing_response,
    check_request,
    denying_response,
    header_map,
)
from ostiary_gateway.wire.protobuf import ProtobufError

# The request that Envoy will forward, parsed from its call. Pure. Method, target, host and the client's headers are
# those of the raw header map (``encode_raw_headers``), in which nothing is joined or replaced; the address is that of
# the client's connection. A missing or duplicate header there is an error in the proxy's configuration.

# The context extensions of a route that name the endpoint and the upstream.
DOOR_EXTENSION, UPSTREAM_EXTENSION = b"ostiary-door", b"ostiary-upstream"
METHOD, TARGET, HOST = b":method", b":path", b":authority"
LENGTH = b"content-length"
# Headers of the connection between the client and Envoy, not of the forwarded request.
_NOT_FORWARDED = frozenset((b"host", b"connection", b"transfer-encoding", b"upgrade", b"expect"))


def client_address(text: bytes) -> str:
    """Return the client's address in canonical form. Raises `BadQuestion`."""
    try:
        return str(ip_address(text.decode("ascii", "replace")))
    except ValueError:
        raise BadQuestion("the call does not say where the request comes from") from None


def carried_request(headers: Headers, address: str, limits: ListenLimits) -> CarriedRequest:
    """Return the request with these *headers*. Raises `BadQuestion`, and `RequestRefused` like our own listener."""
    sources: dict[bytes, bytes] = {}
    head = RequestHead()
    for name, value in headers:
        if name.startswith(b":") or name in (LENGTH, ORIGINAL_UPGRADE):
            if name in sources:
                raise BadQuestion(f"the header {_shown(name)} is there twice")
            sources[name] = value
        elif name not in _NOT_FORWARDED:
            head.headers.append((name, value))
    for required in (METHOD, TARGET):
        if not sources.get(required):
            raise BadQuestion(f"the raw header {_shown(required)} is missing: see encode_raw_headers, allowed_headers")
    head.method, head.target, head.host = sources[METHOD], sources[TARGET], sources.get(HOST, b"")
    head.upgrade = sources.get(ORIGINAL_UPGRADE, b"").lower()
    length = sources.get(LENGTH)
    # Without a length the body may have any length, like a chunked one.
    head.chunked = length is None
    head.content_length = int(length) if length is not None and length.isdigit() and len(length) < 19 else None
    if len(head.headers) > limits.headers or head.size > limits.header_bytes:
        raise RequestRefused(431, "the head of the request is too large")
    is_no_length = length is not None and head.content_length is None
    if head.method not in METHODS or not head.host or is_no_length:
        raise RequestRefused(400, "the request cannot be understood")
    if head.method in NOT_SERVED:
        raise RequestRefused(405, "this method is not served")
    if head.upgrade and head.upgrade not in UPGRADES:
        raise RequestRefused(400, "the connection cannot switch to this protocol")
    return CarriedRequest(head, address)


def _shown(name: bytes) -> str:
    return name.decode("ascii", "replace")


# For the gateway only. The printed configuration removes all headers with the prefix ``impersonate``.
REMOVED = (b"authorization", b"impersonate-user", b"impersonate-group", b"impersonate-uid")
# The prefix of header names with cookies and JWTs.
_OWN_HEADERS = b"X-Ostiary-"
_LONGEST_KEPT = 4096


class CheckExchange(CarriedExchange):
    """The request that a call is about. The engine's response is sent as a ``CheckResponse``."""

    __slots__ = ("_call",)

    def __init__(self, call: Call, request: RequestHead, address: str) -> None:
        super().__init__(call.connection, request, address)
        self._call = call

    @property
    def gone(self) -> bool:
        return self._call.ended or self.connection.transport.is_closing()

    def allow(self, identity: bytes) -> None:
        self._end(_remembered_message(identity) if may_be_kept(identity) else allowing_message(identity))

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._end(denying_response(status, [(name.lower(), value) for name, value in headers], body))

    def abort(self) -> None:
        self.responder = None
        self._call.fail(INTERNAL, b"the gateway failed")

    def _end(self, message: bytes) -> None:
        self.head_sent = self.ended = True
        self.responder = None
        self._call.answer(message)


def allowing_message(identity: bytes) -> bytes:
    """Return the message that allows a request, with these header lines."""
    headers = [line.partition(b": ") for line in identity.split(b"\r\n")[:-1]]
    return allowing_response([(name.lower(), value) for name, _, value in headers], REMOVED)


def may_be_kept(identity: bytes) -> bool:
    """Whether the message may be cached: cookies and JWTs are for a single request."""
    return _OWN_HEADERS not in identity and len(identity) <= _LONGEST_KEPT


# Most users send further requests soon.
_remembered_message = lru_cache(maxsize=1024)(allowing_message)


log = logging.getLogger("ostiary.gateway")

NO_DOOR = b"the permission cannot be asked for here"
_FIXED_BYTES = 1500
NO_REQUEST = RequestHead()


class CheckHandler:
    """Handle the calls for all gRPC endpoints of one configuration.

    As for forward auth, a caller that is not the proxy, or omits required data, gets a uniform response: the call
    fails, and Envoy turns that into a 503. The operator finds the reason in the log and in the metrics.

    No two calls have the same bytes: each contains an id, the time and the port of the client. So parsed calls are
    cached by the data that matters: the headers, the address, the endpoint and the upstream.
    """

    def __init__(self, doors: Mapping[bytes, Door], limits: ListenLimits, metrics: Metrics, clock: Clock) -> None:
        self._doors = doors
        self._limits = limits
        self._metrics = metrics
        self._vain = InvalidRequestLog(metrics, clock)
        self._known: BoundedByOwner[bytes, CarriedRequest] = BoundedByOwner(KNOWN_BYTES, KNOWN_BYTES_PER_OWNER)

    def handle(self, call: Call) -> None:
        """Respond to a call, now or later. Never raises."""
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
        # Free the message: everything needed has been parsed.
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
            # Cache the parsed call once the engine has cached its request. It contains only the digest of the token.
            size = _FIXED_BYTES + head.size + head.known_size
            self._known.keep(key, request, owner=head.known_owner, size=size)

    def _is_proxy(self, door: Door, call: Call) -> bool:
        """Report whether the proxy of *door* is the caller. If not, fail the call."""
        cause = door.objection_to(call.connection.peer_certificate, call.secret)
        if cause:
            self._reject(call, door.name, UNKNOWN_CALLER, cause)
        return not cause

    def _reject(self, call: Call, door: str, result: str, cause: str) -> None:
        """Fail a call that describes no valid request."""
        self._vain.record(door, result, cause, call.connection.remote_address)
        call.fail(PERMISSION_DENIED, NO_DOOR)

    def _refuse(self, door: Door, engine: Engine, call: Call, refusal: RequestRefused) -> None:
        """Reject a client request that our own listener would not have parsed either."""
        self._metrics.door_questions.inc(door.name, REFUSED)
        carried = CheckExchange(call, NO_REQUEST, "")
        line = engine.record_unreadable(carried.connection, None, refusal)
        code, body = status.failure(refusal.status, "", refusal.message)
        name, _, value = line.partition(b": ")
        carried.respond(code, [(name, value.strip()), (b"Content-Type", b"application/json")], body)


def _key(question: CheckRequest) -> bytes:
    """Return the cache key of a call. Length prefixes keep its parts apart."""
    context = question.context
    parts = (context[DOOR_EXTENSION], context[UPSTREAM_EXTENSION], question.address, question.headers)
    return sha256(b"".join([b"%d:%s" % (len(part), part) for part in parts])).digest()
