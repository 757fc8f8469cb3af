"""The engine's answers as variables of HAProxy, from which the printed configuration makes headers and refusals.

    allowed    good, pass=<expiry>|<lease>|<user>|<uid>|<groups>|<extra>...
    refused    status, body, and what else the client gets

``pass`` has the same form in HAProxy's map of decisions (`doors.haproxy.decisions`), where expiry and lease say how
long it is good; here they are empty. Each part is percent-encoded but for letters, digits and a few marks, so that no
name can be more than a name: neither in the map, nor on the socket over which the map is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import quote

from ostiary.gateway.config.settings import ProxyKind
from ostiary.gateway.doors.forward.carried import ALLOWED, CarriedExchange, ProxyConnection
from ostiary.gateway.doors.forward.dialects import DIALECTS
from ostiary.gateway.doors.forward.identity import answer_names, identity_answer, join_values
from ostiary.gateway.doors.haproxy import spop
from ostiary.gateway.doors.haproxy.connection import AgentConnection
from ostiary.gateway.http1.request_head import RequestHead
from ostiary.gateway.request.answers import Answers
from ostiary.gateway.request.records import RequestRecords
from ostiary.gateway.request.stages import Passage
from ostiary.model import UserInfo
from ostiary.wire import status

STATUS, GOOD, PASS, BODY = b"status", b"good", b"pass", b"body"
# The headers of a refusal that reach the client, and the variables that hold them.
REFUSAL_VARIABLES = {
    b"audit-id": b"audit_id",
    b"www-authenticate": b"challenge",
    b"retry-after": b"retry_after",
    b"location": b"location",
}
# Of a frame, for its type, its flags and its numbers.
_FRAME_HEAD_BYTES = 64
_TOO_LONG = status.failure(503, "ServiceUnavailable", "the identity of the user is too long for this proxy")
_ALLOW = spop.set_variable(GOOD, spop.TRUE)

OnAllowed = Callable[[Passage, "AskedBySpoe"], None]


class AskedBySpoe(CarriedExchange):
    """The request that HAProxy asks about. `key` is that of its decision, empty if it is for once only.

    `replaces` is whether HAProxy holds an old decision under the key.
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
        """There is no answer: HAProxy answers by itself, with 503."""
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
    """Answers allowed requests for the door of a HAProxy, in the place of forwarding them."""

    def __init__(self, extra_keys: Sequence[str], on_allowed: OnAllowed | None) -> None:
        self._extra_keys = tuple(extra_keys)
        self._on_allowed = on_allowed

    def answer(self, records: RequestRecords, answers: Answers, passage: Passage) -> None:
        plan, exchange = passage.plan, passage.exchange
        assert isinstance(exchange, AskedBySpoe)
        if not plan.identity:
            plan.identity = packed_identity(plan.user, self._extra_keys)
        records.conclude(passage, ALLOWED)
        if not exchange.gone:
            exchange.allow(plan.identity)
            if self._on_allowed is not None and exchange.key:
                self._on_allowed(passage, exchange)


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
    """Who *user* is, in the order of `answer_names`; raises `BadHeader` for a name that a header cannot carry."""
    # The same names are refused as at every other door.
    identity_answer(user, DIALECTS[ProxyKind.HAPROXY], extra_keys)
    extra = dict(user.extra)
    parts = [user.username, user.uid, join_values(user.groups)]
    parts += [join_values(extra.get(key, ())) for key in extra_keys]
    assert len(parts) == len(answer_names(extra_keys))
    return "|".join([quote(part, safe=",") for part in parts]).encode()
