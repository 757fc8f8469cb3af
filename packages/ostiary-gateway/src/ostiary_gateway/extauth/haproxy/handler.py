"""Handler of SPOE messages: authenticates HAProxy, and passes the request to the engine of its upstream.

As for forward auth, a caller that is not the proxy gets a 503 without details, and parsed messages are cached by their
bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote

from ostiary.core.clock import Clock
from ostiary.model import UserInfo
from ostiary.wire import status
from ostiary_gateway.config.extauth import ProxyKind
from ostiary_gateway.extauth.callers import InvalidRequestLog
from ostiary_gateway.extauth.dialects import DIALECTS
from ostiary_gateway.extauth.forward_auth import ASKED, BAD_QUESTION, NO_DOOR, REFUSED, UNKNOWN_CALLER, Door
from ostiary_gateway.extauth.forwarded_request import ALLOWED, CarriedConnection, CarriedExchange, ProxyConnection
from ostiary_gateway.extauth.haproxy import spop
from ostiary_gateway.extauth.haproxy.connection import AgentConnection
from ostiary_gateway.extauth.haproxy.decision_key import decision_key
from ostiary_gateway.extauth.identity_headers import answer_names, identity_answer, join_values
from ostiary_gateway.extauth.request import BadQuestion, CarriedRequest, check_carried
from ostiary_gateway.http1.headers import NO_DIGEST, Headers
from ostiary_gateway.http1.request_head import KnownHeads, RequestHead, RequestRefused
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.engine import Engine
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.sessions import digest

# The request that HAProxy will forward, parsed from the arguments of its message. Pure. The printed configuration names
# the arguments, and HAProxy fills them itself: a client cannot influence them. A missing argument, or one with another
# type, is an error in the configuration.

# The prefix of a message's name; the rest is the upstream.
MESSAGE_PREFIX = b"ostiary-"
SECRET, METHOD, TARGET, VERSION, HEADERS, ADDRESS, STALE = (
    *(b"secret", b"method", b"target", b"version", b"headers"),
    *(b"address", b"stale"),
)
# Headers of HAProxy's own connections. What they say about the request is parsed separately.
_FRAMING = frozenset((b"host", b"connection", b"content-length", b"transfer-encoding", b"upgrade", b"expect"))


@dataclass(frozen=True, slots=True)
class HaproxyQuestion:
    """The content of a message.

    `key_parts` are the parts of the request's key, empty if the decision must not be cached. `replaces` is whether
    HAProxy has a stale decision for the request.
    """

    request: CarriedRequest
    key_parts: tuple[bytes, ...]
    replaces: bool


def presented_secret(message: spop.Message) -> bytes:
    """Return the digest of the secret in a message."""
    secret = message.arguments.get(SECRET)
    return digest(secret) if isinstance(secret, bytes) and secret else NO_DIGEST


def upstream_of(message: spop.Message) -> bytes:
    """Return the name of the upstream that HAProxy has chosen. Raises `BadQuestion`."""
    if not message.name.startswith(MESSAGE_PREFIX):
        raise BadQuestion("the message is none of the printed configuration")
    return message.name[len(MESSAGE_PREFIX) :]


def haproxy_question(message: spop.Message) -> HaproxyQuestion:
    """Parse *message*. Raises `BadQuestion`, and `RequestRefused` for what our own listener would reject too."""
    arguments = message.arguments
    address = arguments.get(ADDRESS)
    if not isinstance(address, IPv4Address | IPv6Address):
        raise BadQuestion("the argument address is missing")
    head = RequestHead()
    head.method, version = _text(arguments, METHOD), _text(arguments, VERSION)
    try:
        headers = spop.read_headers(_text(arguments, HEADERS))
    except spop.SpopError:
        raise BadQuestion("the argument headers is not req.hdrs_bin") from None
    # HAProxy omits it if the target is not a path.
    target = arguments.get(TARGET)
    head.target = target if isinstance(target, bytes) else b""
    length = _read_framing(head, headers, is_http1=version.startswith(b"1."))
    head.headers = [header for header in headers if header[0].lower() not in _FRAMING]
    if not head.target:
        raise RequestRefused(400, "the request cannot be understood")
    check_carried(head, length)
    return HaproxyQuestion(
        CarriedRequest(head, str(address)), _key_parts(head), isinstance(arguments.get(STALE), bytes)
    )


def _text(arguments: dict[bytes, spop.Value], name: bytes) -> bytes:
    value = arguments.get(name)
    if not isinstance(value, bytes) or not value:
        raise BadQuestion(f"the argument {name.decode()} is missing")
    return value


def _read_framing(head: RequestHead, headers: Headers, *, is_http1: bool) -> bytes:
    """Set host, body framing and upgrade of *head*. Return the content length as it was sent."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in _FRAMING:
            values.setdefault(lower, []).append(value.strip(b" \t"))
    hosts, lengths = values.get(b"host", []), values.get(b"content-length", [])
    if len(hosts) != 1 or len(lengths) > 1:
        raise RequestRefused(400, "the request must have one Host")
    head.host = hosts[0]
    head.upgrade = b",".join(values.get(b"upgrade", [])).lower()
    length = lengths[0] if lengths else b""
    # A body without an announced length, chunked or in HTTP/2, may have any length.
    head.chunked = not length and (b"transfer-encoding" in values or not is_http1)
    head.content_length = int(length) if length.isdigit() and len(length) < 19 else None
    return length


def _key_parts(head: RequestHead) -> tuple[bytes, ...]:
    """Return the parts of the key under which HAProxy caches the decision; empty if it does not. See `decision_key`."""
    tokens = [value for name, value in head.headers if name.lower() == b"authorization"]
    impersonates = any(b"impersonate" in name.lower() for name, _ in head.headers)
    if head.upgrade or impersonates or len(tokens) != 1:
        return ()
    return (head.method, head.host, head.target, tokens[0])


# Responses as HAProxy variables, from which the printed configuration makes headers and error responses.
#
#     allowed    good, pass=<expiry>|<lease>|<user>|<uid>|<groups>|<extra>...
#     denied     status, body, and further headers for the client
#
# ``pass`` has the same format as in HAProxy's map of decisions (`decision_push`), where expiry and lease limit its
# validity; here they are empty. Each part is percent-encoded except for letters, digits and a few characters, so that a
# name can inject nothing, neither into the map nor into the runtime socket that changes it.

STATUS, GOOD, PASS, BODY = b"status", b"good", b"pass", b"body"
# The headers of an error response that reach the client, and their variables.
REFUSAL_VARIABLES = {
    b"audit-id": b"audit_id",
    b"www-authenticate": b"challenge",
    b"retry-after": b"retry_after",
    b"location": b"location",
}
# Room in a frame for its type, flags and numbers.
_FRAME_HEAD_BYTES = 64
_TOO_LONG = status.failure(503, "ServiceUnavailable", "the identity of the user is too long for this proxy")
_ALLOW = spop.set_variable(GOOD, spop.TRUE)

OnAllowed = Callable[[RequestContext, "AskedBySpoe"], None]


class AskedBySpoe(CarriedExchange):
    """The request of a SPOE query.

    `key` is that of its decision, empty if it must not be cached. `replaces` is whether HAProxy has a stale decision
    under it.
    """

    __slots__ = ("_agent", "_frame", "_stream", "key", "replaces")

    def __init__(
        self,
        agent: AgentConnection,
        stream: int,
        frame: int,
        request: RequestHead,
        address: str,
        *,
        key: str = "",
        replaces: bool = False,
    ) -> None:
        proxy: ProxyConnection = agent
        super().__init__(proxy, request, address)
        self._agent, self._stream, self._frame = agent, stream, frame
        self.key, self.replaces = key, replaces

    def allow(self, identity: bytes) -> None:
        self._send(_ALLOW + spop.set_variable(PASS, spop.string(b"||" + identity)))

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._send(refusal_actions(status, headers, body))

    def abort(self) -> None:
        """Respond without variables: HAProxy then sends a 503 itself."""
        self.responder = None
        self._send(b"")

    def _send(self, actions: bytes) -> None:
        if self.ended:
            return
        self.head_sent = self.ended = True
        if len(actions) + _FRAME_HEAD_BYTES > self._agent.frame_size:
            actions = refusal_actions(_TOO_LONG.code, [], _TOO_LONG.body)
        self._agent.answer(self._stream, self._frame, actions)


class HaproxyAnswers:
    """Respond to allowed requests from HAProxy instead of forwarding them."""

    def __init__(self, extra_keys: Sequence[str], on_allowed: OnAllowed | None) -> None:
        self._extra_keys = tuple(extra_keys)
        self._on_allowed = on_allowed

    def answer(self, records: RequestLog, answers: Responses, ctx: RequestContext) -> None:
        plan, exchange = ctx.plan, ctx.exchange
        assert isinstance(exchange, AskedBySpoe)
        if not plan.identity:
            plan.identity = packed_identity(plan.user, self._extra_keys)
        records.conclude(ctx, ALLOWED)
        if not exchange.gone:
            exchange.allow(plan.identity)
            if self._on_allowed is not None and exchange.key:
                self._on_allowed(ctx, exchange)


def refusal_actions(status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
    actions = [
        spop.set_variable(STATUS, spop.uint32(status)),
        spop.set_variable(BODY, spop.string(body.strip())),
    ]
    for name, value in headers:
        variable = REFUSAL_VARIABLES.get(name.lower())
        if variable is not None:
            actions.append(spop.set_variable(variable, spop.string(value)))
    return b"".join(actions)


def packed_identity(user: UserInfo, extra_keys: Sequence[str]) -> bytes:
    """Return *user* in the order of `answer_names`. Raises `BadHeader` for a name that a header cannot contain."""
    # Reject the same names as for every other proxy.
    identity_answer(user, DIALECTS[ProxyKind.HAPROXY], extra_keys)
    extra = dict(user.extra)
    parts = [user.username, user.uid, join_values(user.groups)]
    parts += [join_values(extra.get(key, ())) for key in extra_keys]
    assert len(parts) == len(answer_names(extra_keys))
    return "|".join([quote(part, safe=",") for part in parts]).encode()


log = logging.getLogger("ostiary.gateway")


class _RememberedMessage:
    """The parsed content of a message. Its request contains no token, and the secret is a digest."""

    __slots__ = ("address", "engine", "key", "replaces", "request", "secret")

    def __init__(self, engine: Engine, secret: bytes, carried: CarriedRequest, key: str, replaces: bool) -> None:
        self.engine, self.secret = engine, secret
        self.request, self.address = carried.head, carried.address
        self.key, self.replaces = key, replaces


class HaproxyHandler:
    """Handle the queries of one endpoint. *makes_keys*: its decisions can be cached."""

    def __init__(self, door: Door, metrics: Metrics, clock: Clock, *, makes_keys: bool) -> None:
        self._door = door
        self._metrics = metrics
        self._makes_keys = makes_keys
        self._known = KnownHeads()
        self._vain = InvalidRequestLog(metrics, clock)

    def handle(self, agent: AgentConnection, stream: int, frame: int, payload: bytes) -> None:
        """Respond to a query, now or later. Never raises."""
        try:
            known = self._known.find(sha256(payload).digest())
            question = None if known is None else known.known
            if type(question) is _RememberedMessage:
                if self._is_proxy(agent, stream, frame, question.secret):
                    self._ask(question, agent, stream, frame)
            else:
                self._receive(agent, stream, frame, payload)
        except Exception as error:
            log.error("a question failed inside the gateway", extra={"cause": type(error).__name__}, exc_info=error)
            self._reject(agent, stream, frame, BAD_QUESTION, "the gateway failed")

    def _receive(self, agent: AgentConnection, stream: int, frame: int, payload: bytes) -> None:
        try:
            messages = spop.read_messages(payload)
            if len(messages) != 1:
                raise BadQuestion("a question has not one message")
            (message,) = messages
        except (spop.SpopError, BadQuestion) as error:
            self._reject(agent, stream, frame, BAD_QUESTION, str(error))
            return
        secret = presented_secret(message)
        if not self._is_proxy(agent, stream, frame, secret):
            return
        try:
            upstream = upstream_of(message)
            engine = self._door.engines.get(upstream)
            if engine is None:
                raise BadQuestion("the door has no such upstream")
            asked = haproxy_question(message)
        except BadQuestion as error:
            self._reject(agent, stream, frame, BAD_QUESTION, str(error))
        except RequestRefused as refusal:
            assert engine is not None
            self._refuse(agent, stream, frame, engine, refusal)
        else:
            key = ""
            if self._makes_keys and asked.key_parts:
                key = decision_key(self._door.name.encode(), upstream, asked.key_parts)
            question = _RememberedMessage(engine, secret, asked.request, key, asked.replaces)
            self._ask(question, agent, stream, frame)
            self._remember(question, payload)

    def _ask(self, question: _RememberedMessage, agent: AgentConnection, stream: int, frame: int) -> None:
        self._metrics.door_questions.inc(self._door.name, ASKED)
        exchange = AskedBySpoe(
            agent, stream, frame, question.request, question.address, key=question.key, replaces=question.replaces
        )
        question.engine.handle(exchange)

    def _remember(self, question: _RememberedMessage, payload: bytes) -> None:
        """Cache the parsed message by its bytes, once the engine has cached its request."""
        carried = question.request
        if carried.known is not None:
            holder = RequestHead()
            holder.known, holder.known_owner = question, carried.known_owner
            holder.known_size = carried.known_size + carried.size
            self._known.keep(payload, holder)

    def _is_proxy(self, agent: AgentConnection, stream: int, frame: int, secret: bytes) -> bool:
        """Report whether the endpoint's proxy is the sender. If not, send a response."""
        cause = self._door.objection_to(agent.peer_certificate, secret)
        agent.note_caller(known=not cause)
        if cause:
            self._reject(agent, stream, frame, UNKNOWN_CALLER, cause)
        return not cause

    def _reject(self, agent: AgentConnection, stream: int, frame: int, result: str, cause: str) -> None:
        self._vain.record(self._door.name, result, cause, agent.remote_address)
        agent.answer(stream, frame, refusal_actions(NO_DOOR.code, [], NO_DOOR.body))

    def _refuse(self, agent: AgentConnection, stream: int, frame: int, engine: Engine, refusal: RequestRefused) -> None:
        """Reject a client request that our own listener would not have parsed either."""
        self._metrics.door_questions.inc(self._door.name, REFUSED)
        line = engine.record_unreadable(CarriedConnection(agent, ""), None, refusal)
        name, _, value = line.partition(b": ")
        code, body = status.failure(refusal.status, "", refusal.message)
        agent.answer(stream, frame, refusal_actions(code, [(name, value.strip())], body))
