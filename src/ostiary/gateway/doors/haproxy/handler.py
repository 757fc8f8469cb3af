"""Receives the questions of a HAProxy: checks who asks, and hands the request to the engine of its upstream.

Called by the connections of the agent. As at the doors that are asked over HTTP, whoever is not the proxy gets 503 and
nothing else, and what was read from a question is remembered with its bytes. See `doors.forward.handler`.
"""

from __future__ import annotations

import logging
from hashlib import sha256

from ostiary.core.clock import Clock
from ostiary.gateway.doors.forward.carried import CarriedConnection
from ostiary.gateway.doors.forward.handler import (
    ASKED,
    BAD_QUESTION,
    NO_DOOR,
    REFUSED,
    UNKNOWN_CALLER,
    Door,
)
from ostiary.gateway.doors.forward.question import BadQuestion, CarriedRequest
from ostiary.gateway.doors.forward.vain_questions import VainQuestions
from ostiary.gateway.doors.haproxy import spop
from ostiary.gateway.doors.haproxy.answers import AskedBySpoe, refusal_actions
from ostiary.gateway.doors.haproxy.connection import AgentConnection
from ostiary.gateway.doors.haproxy.decisions.key import decision_key
from ostiary.gateway.doors.haproxy.question import haproxy_question, presented_secret, upstream_of
from ostiary.gateway.http1.request_head import KnownHeads, RequestHead, RequestRefused
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.request.engine import Engine
from ostiary.wire import status

log = logging.getLogger("ostiary.gateway")


class _RememberedMessage:
    """What was read from the bytes of a question. Its request holds no token; the secret is a digest."""

    __slots__ = ("address", "engine", "key", "replaces", "request", "secret")

    def __init__(self, engine: Engine, secret: bytes, carried: CarriedRequest, key: str, replaces: bool) -> None:
        self.engine, self.secret = engine, secret
        self.request, self.address = carried.head, carried.address
        self.key, self.replaces = key, replaces


class HaproxyHandler:
    """The questions of one door. *makes_keys*: its decisions can be used again."""

    def __init__(self, door: Door, metrics: Metrics, clock: Clock, *, makes_keys: bool) -> None:
        self._door = door
        self._metrics = metrics
        self._makes_keys = makes_keys
        self._known = KnownHeads()
        self._vain = VainQuestions(metrics, clock)

    def handle(self, agent: AgentConnection, stream: int, frame: int, payload: bytes) -> None:
        """Answer a question, now or later. It never raises."""
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
        """Once the engine remembers the carried request, the question is remembered with its bytes."""
        carried = question.request
        if carried.known is not None:
            holder = RequestHead()
            holder.known, holder.known_owner = question, carried.known_owner
            holder.known_size = carried.known_size + carried.size
            self._known.keep(payload, holder)

    def _is_proxy(self, agent: AgentConnection, stream: int, frame: int, secret: bytes) -> bool:
        """Whether the proxy of the door asks. If it does not, it is answered."""
        cause = self._door.objection_to(agent.peer_certificate, secret)
        agent.note_caller(known=not cause)
        if cause:
            self._reject(agent, stream, frame, UNKNOWN_CALLER, cause)
        return not cause

    def _reject(self, agent: AgentConnection, stream: int, frame: int, result: str, cause: str) -> None:
        self._vain.record(self._door.name, result, cause, agent.remote_address)
        agent.answer(stream, frame, refusal_actions(NO_DOOR.code, [], NO_DOOR.body))

    def _refuse(self, agent: AgentConnection, stream: int, frame: int, engine: Engine, refusal: RequestRefused) -> None:
        """The client sent to HAProxy what our own listener would not have read either."""
        self._metrics.door_questions.inc(self._door.name, REFUSED)
        line = engine.record_unreadable(CarriedConnection(agent, ""), None, refusal)
        name, _, value = line.partition(b": ")
        code, body = status.failure(refusal.status, "", refusal.message)
        agent.answer(stream, frame, refusal_actions(code, [(name, value.strip())], body))
