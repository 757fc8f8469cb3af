"""The path of a request: who is it, what is asked, may they, pass it on. One engine per worker and configuration.

    exchange -> headers (scan) -> token (Authenticator) -> plan (what is asked, the decision) -> limits, admission
             -> audit -> upstream (Proxied) or an answer of our own

Called by a client's connection for every request. Most requests are like an earlier one of the same token: its `Plan`
is found by the bytes of the request line, and nothing has to be waited for. What must be waited for (a token not in
memory, a provider that asks others, a turn in the queue) goes on in a task and comes back to the same steps.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ostiary.core.clock import Clock
from ostiary.core.tokens import digest
from ostiary.errors import AuditUnavailable, ProviderError, TooManyRequests
from ostiary.gateway import impersonate
from ostiary.gateway.answers import Answers
from ostiary.gateway.audit.auditor import Auditor, Network
from ostiary.gateway.authenticate import Authenticator, LiveToken, bearer
from ostiary.gateway.authorize import Authorizer, Ruling
from ostiary.gateway.headers import BadHeader, HeaderFilter, Scanned, websocket_token
from ostiary.gateway.http1.client import UpstreamLost
from ostiary.gateway.http1.server import Exchange
from ostiary.gateway.limits import Limits, Ticket
from ostiary.gateway.metrics import Metrics
from ostiary.gateway.paths import AmbiguousRequest
from ostiary.gateway.proxy import Proxied, Recorder
from ostiary.gateway.questions import NoRoute, Questions, rule, rule_at_once
from ostiary.gateway.request import Arrival, Handler, OpenHandler, OwnApi, Passage, Plan, Question
from ostiary.gateway.upstreams import Routes
from ostiary.interfaces.admission import AdmissionProvider
from ostiary.model import Attributes, UserInfo

log = logging.getLogger("ostiary.gateway")

# How many plans are kept per token: one that asks for ever new things must not fill the memory.
MOST_PLANS = 512
LONGEST_PLANNED_TARGET = 2048
MOST_SCANS = 4096
LONGEST_SCAN = 2048


@dataclass(slots=True)
class EngineParts:
    """What an engine is made of."""

    authenticator: Authenticator
    authorizer: Authorizer
    routes: Routes
    auditor: Auditor
    limits: Limits
    metrics: Metrics
    clock: Clock
    headers: HeaderFilter
    admission: Sequence[AdmissionProvider] = ()
    own_apis: Sequence[OwnApi] = ()
    self_reviews: Handler | None = None
    open_paths: dict[bytes, OpenHandler] = field(default_factory=dict)
    trusted_proxies: Sequence[Network] = ()
    realm: str = "ostiary"


class Engine:
    """Serves requests with one configuration. A reload makes another engine; this one ends with its last request."""

    def __init__(self, parts: EngineParts, loop: asyncio.AbstractEventLoop) -> None:
        self._parts = parts
        self._loop = loop
        self._authenticator = parts.authenticator
        self._authorizer = parts.authorizer
        self._auditor = parts.auditor
        self._limits = parts.limits
        self._metrics = parts.metrics
        self._monotonic = parts.clock.monotonic
        self._headers = parts.headers
        self._scans: dict[tuple[tuple[bytes, bytes], ...], Scanned] = {}
        self._open_prefixes = tuple(parts.open_paths)
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[Proxied] = set()
        self._open = 0
        self._seen_generation = parts.authorizer.generation
        self._questions = Questions(parts.routes, parts.own_apis, parts.self_reviews)
        self._answers = Answers(
            parts.authorizer,
            parts.auditor,
            parts.metrics,
            parts.clock,
            trusted_proxies=parts.trusted_proxies,
            realm=parts.realm,
        )

    @property
    def busy(self) -> bool:
        """Whether a request that it let through has not ended yet."""
        return self._open > 0 or bool(self._tasks)

    def tick(self) -> None:
        """About once a second: streams whose right to go on has ended with a change of policy are cut."""
        generation = self._authorizer.generation
        if generation == self._seen_generation:
            return
        self._seen_generation = generation
        for proxied in list(self._streams):
            passage: Passage = proxied.context
            if passage.plan.ruling.generation != generation:
                self._later(self._check_again(proxied, passage), passage.arrival)

    def judge_by(self, authorizer: Authorizer) -> None:
        """Another configuration has taken over: what is still open here goes on only if that one allows it, too."""
        self._authorizer = authorizer
        self._seen_generation = authorizer.generation
        for proxied in list(self._streams):
            passage: Passage = proxied.context
            self._later(self._check_again(proxied, passage), passage.arrival)

    async def _check_again(self, proxied: Proxied, passage: Passage) -> None:
        plan = passage.plan
        try:
            ruling = await rule(self._authorizer, plan.user, plan.required)
        except ProviderError:
            # Not a no: a stream that was rightly opened goes on, and is asked about again.
            self._seen_generation = -1
            return
        if ruling.decision.allowed:
            passage.plan = replace(plan, ruling=ruling)
        elif proxied in self._streams:
            log.info("a stream was cut: the policy no longer allows it", extra={"request_id": passage.arrival.audit_id})
            proxied.cut()

    # --- arriving ---

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later. It never raises: whatever goes wrong inside is answered too."""
        try:
            self._arrived(exchange)
        except Exception as error:
            self._failed(Arrival(exchange, Scanned(), self._monotonic(), self._auditor.audit_id()), error)

    def _arrived(self, exchange: Exchange) -> None:
        received_at = self._monotonic()
        audit_id = self._auditor.audit_id()
        scanned = self._scans.get(tuple(exchange.headers))
        if scanned is None:
            try:
                scanned = self._headers.scan(exchange.headers)
            except BadHeader as error:
                self._answers.bad_request(Arrival(exchange, Scanned(), received_at, audit_id), str(error))
                return
        arrival = Arrival(exchange, scanned, received_at, audit_id)
        if exchange.target.startswith(self._open_prefixes):
            opened = self._parts.open_paths.get(_first_segment(exchange.target))
            if opened is not None:
                self._serve_open(opened, arrival)
                return
        live = None if scanned.digest is None else self._authenticator.known(scanned.digest)
        if live is not None:
            self._authenticated(arrival, live)
        else:
            self._identify(arrival)

    def _identify(self, arrival: Arrival) -> None:
        """A token that these headers did not carry before, or that is no longer good."""
        try:
            token = self._token(arrival)
        except BadHeader as error:
            self._answers.bad_request(arrival, str(error))
            return
        if token is None:
            self._answers.unauthorized(arrival, attempted=False)
            return
        arrival.scanned.digest = digest(token)
        live = self._authenticator.known(arrival.scanned.digest)
        if live is None:
            self._later(self._find_token(arrival, token), arrival)
        else:
            self._remember_scan(arrival)
            self._authenticated(arrival, live)

    def _remember_scan(self, arrival: Arrival) -> None:
        """Clients send the same headers again and again. Only those of known tokens are kept, and no large ones."""
        if len(arrival.scanned.lines) <= LONGEST_SCAN:
            if len(self._scans) >= MOST_SCANS:
                self._scans.clear()
            self._scans[tuple(arrival.exchange.headers)] = arrival.scanned

    def _token(self, arrival: Arrival) -> bytes | None:
        authorization = arrival.scanned.authorization
        if authorization is not None:
            return bearer(authorization)
        if arrival.exchange.upgrade != b"websocket":
            return None
        encoded = websocket_token(arrival.exchange.headers)
        return None if encoded is None else _decoded(encoded)

    async def _find_token(self, arrival: Arrival, token: bytes) -> None:
        address = arrival.exchange.connection.remote_address
        try:
            self._limits.failures.check(address)
            live = await self._authenticator.find(token)
        except TooManyRequests as error:
            self._answers.too_many(arrival, error, "failures")
            return
        except ProviderError as error:
            self._answers.store_unavailable(arrival, error)
            return
        if arrival.exchange.gone:
            return
        if live is None:
            self._limits.failures.failed(address)
            self._answers.unauthorized(arrival, attempted=True)
        else:
            self._authenticated(arrival, live)

    # --- deciding ---

    def _authenticated(self, arrival: Arrival, live: LiveToken) -> None:
        exchange = arrival.exchange
        key = (exchange.method, exchange.target, exchange.host, exchange.upgrade)
        plan = live.plans.get(key)
        if plan is not None and not arrival.scanned.impersonate and self._still_good(live, plan):
            self._perform(arrival, live, plan)
            return
        try:
            question = self._questions.of(exchange)
        except (AmbiguousRequest, ValueError) as error:
            self._answers.bad_request(arrival, str(error))
            return
        except NoRoute:
            self._answers.no_route(arrival)
            return
        if arrival.scanned.impersonate:
            self._later(self._as_another(arrival, live, question), arrival)
            return
        ruling = rule_at_once(self._authorizer, live.user, question.required)
        if ruling is None:
            self._later(self._rule(arrival, live, question, key), arrival)
        else:
            self._planned(arrival, live, question, ruling, key)

    def _still_good(self, live: LiveToken, plan: Plan) -> bool:
        """Whether a plan may be used again. When only its time is up, the same question is asked, and no more."""
        if self._authorizer.still_holds(plan.ruling):
            return True
        ruling = rule_at_once(self._authorizer, live.user, plan.required) if plan.required else None
        if ruling is None or ruling.decision != plan.ruling.decision:
            # Something else follows from it: the plan is made anew.
            return False
        plan.ruling = ruling
        return True

    async def _rule(self, arrival: Arrival, live: LiveToken, question: Question, key: Any) -> None:
        try:
            ruling = await rule(self._authorizer, live.user, question.required)
        except ProviderError as error:
            self._answers.could_not_ask(arrival, live.user, question.info, error)
            return
        if not arrival.exchange.gone:
            self._planned(arrival, live, question, ruling, key)

    async def _as_another(self, arrival: Arrival, live: LiveToken, question: Question) -> None:
        """``kubectl --as``: the user must be allowed to be the other, and the other to do what is asked."""
        try:
            other = impersonate.requested(list(arrival.scanned.impersonate))
        except (BadHeader, UnicodeDecodeError) as error:
            self._answers.bad_request(arrival, str(error))
            return
        asked = question
        try:
            for info in impersonate.questions(other):
                ruling = await rule(self._authorizer, live.user, (info,))
                if not ruling.decision.allowed:
                    # Never hidden: the question names nothing but what the user wrote.
                    decision = replace(ruling.decision, hidden=False)
                    asked = Question(info, ())
                    ruling = replace(ruling, decision=decision)
                    break
            else:
                ruling = await rule(self._authorizer, other, question.required)
        except ProviderError as error:
            self._answers.could_not_ask(arrival, live.user, question.info, error)
            return
        if not arrival.exchange.gone:
            user = live.user if asked is not question else other
            self._perform(arrival, live, self._plan(arrival, asked, ruling, user, actor=live.user))

    def _planned(self, arrival: Arrival, live: LiveToken, question: Question, ruling: Ruling, key: Any) -> None:
        plan = self._plan(arrival, question, ruling, live.user)
        if len(arrival.exchange.target) <= LONGEST_PLANNED_TARGET:
            if len(live.plans) >= MOST_PLANS:
                live.plans.clear()
            live.plans[key] = plan
        self._perform(arrival, live, plan)

    def _plan(
        self, arrival: Arrival, question: Question, ruling: Ruling, user: UserInfo, *, actor: UserInfo | None = None
    ) -> Plan:
        exchange = arrival.exchange
        audit = self._auditor.prepare(
            question.info,
            actor or user,
            request_uri=exchange.target.decode("latin-1"),
            decision=ruling.decision,
            long_running=question.long_running,
            impersonated=user if actor is not None and user != actor else None,
        )
        self._metrics.decisions.inc(ruling.decision.verdict.value)
        plan = Plan(ruling, question.info, user, question.upstream, question.handler, audit=audit)
        plan.long_running, plan.required = question.long_running, question.required
        if question.upstream is not None and ruling.decision.allowed:
            target = question.upstream.forwarded_target(exchange.target)
            line = exchange.method + b" " + target + b" HTTP/1.1\r\n"
            plan.head = line + question.upstream.host_line + question.upstream.identity(user)
        return plan

    # --- doing ---

    def _perform(self, arrival: Arrival, live: LiveToken, plan: Plan) -> None:
        if live.revoked:
            # Withdrawn while it was being decided on.
            self._answers.unauthorized(arrival, attempted=True)
            return
        if not plan.ruling.decision.allowed:
            self._answers.refused(arrival, plan)
            return
        key = live.limits_key
        try:
            ticket = self._limits.open_stream(key) if plan.long_running else self._limits.try_enter(key)
        except TooManyRequests as error:
            self._answers.too_many(arrival, error, "streams" if plan.long_running else "rate", plan)
            return
        if ticket is None:
            assert key is not None, "who is exempt never waits"
            self._later(self._wait_for_turn(arrival, live, plan, key), arrival)
        else:
            self._admit(arrival, live, plan, ticket)

    async def _wait_for_turn(self, arrival: Arrival, live: LiveToken, plan: Plan, key: str) -> None:
        try:
            ticket = await self._limits.wait(key)
        except TooManyRequests as error:
            self._answers.too_many(arrival, error, "concurrency", plan)
            return
        if arrival.exchange.gone or live.revoked:
            ticket.leave()
            arrival.exchange.abort()
            return
        self._admit(arrival, live, plan, ticket)

    def _admit(self, arrival: Arrival, live: LiveToken, plan: Plan, ticket: Ticket) -> None:
        if self._parts.admission and not self._admitted(arrival, plan):
            ticket.leave()
            return
        passage = Passage(live, plan, arrival, ticket)
        audit = plan.audit
        if audit is not None:
            arrival.origin = self._answers.origin(arrival)
            if audit.wants_received:
                try:
                    audit.received(arrival.audit_id, arrival.origin, arrival.received_at)
                except AuditUnavailable as error:
                    ticket.leave()
                    log.error("a request was refused: its audit event cannot be stored", extra={"cause": error.cause})
                    self._answers.internal(arrival)
                    return
        if plan.handler is not None:
            self._later(self._serve_own(plan.handler, passage), arrival)
        else:
            self._forward(passage)

    def _admitted(self, arrival: Arrival, plan: Plan) -> bool:
        attributes, exchange = Attributes(plan.user, plan.info), arrival.exchange
        size = None if exchange.chunked else exchange.content_length or 0
        for provider in self._parts.admission:
            try:
                admission = provider.admit(attributes, size=size)
            except Exception as error:
                log.error("an admission provider failed", extra={"cause": type(error).__name__})
                self._answers.internal(arrival, plan)
                return False
            if not admission.admitted:
                self._metrics.admissions.inc()
                self._answers.not_admitted(arrival, plan, admission)
                return False
        return True

    def _forward(self, passage: Passage) -> None:
        plan, arrival = passage.plan, passage.arrival
        upstream, exchange = plan.upstream, arrival.exchange
        assert upstream is not None
        try:
            credential = upstream.credential()
        except OSError as error:
            extra = {"upstream": upstream.name, "cause": error.strerror}
            log.error("the gateway has no credential for an upstream", extra=extra)
            self._conclude(passage, 503)
            self._answers.upstream_failed(arrival, 503)
            return
        framing = b""
        if exchange.chunked:
            framing = b"Transfer-Encoding: chunked\r\n"
        elif exchange.content_length is not None:
            framing = b"Content-Length: %d\r\n" % exchange.content_length
        if exchange.upgrade:
            framing += b"Connection: Upgrade\r\nUpgrade: " + _UPGRADE_NAMES[exchange.upgrade] + b"\r\n"
        head = b"".join(
            (
                plan.head,
                credential,
                arrival.scanned.lines,
                exchange.connection.forwarded_lines,
                b"Audit-ID: ",
                arrival.audit_id.encode(),
                b"\r\n",
                framing,
                b"\r\n",
            )
        )
        proxied = Proxied(
            exchange,
            upstream,
            head,
            extra_head=b"Audit-Id: " + arrival.audit_id.encode() + b"\r\n",
            timeout=float("inf") if plan.long_running else upstream.response_timeout,
            finished=self._finished,
            answer_failure=self._answer_failure,
            started=self._started if plan.long_running else None,
            recorder=self._recorder(passage),
            context=passage,
        )
        self._authenticator.opened(passage.live, proxied)
        self._open += 1
        if plan.long_running:
            self._streams.add(proxied)
        proxied.start()

    def _recorder(self, passage: Passage) -> Recorder | None:
        audit = passage.plan.audit
        if audit is None or not audit.wants_request_body:
            return None
        passage.recorder = Recorder(self._auditor.largest_body, request=True, response=audit.wants_response_body)
        return passage.recorder

    def _started(self, proxied: Proxied, code: int) -> None:
        """The head of a watch, a log or a terminal is on its way."""
        passage: Passage = proxied.context
        arrival = passage.arrival
        if passage.plan.audit is None:
            return
        try:
            passage.plan.audit.started(
                arrival.audit_id, arrival.origin, code, received_at=arrival.received_at, at=self._monotonic()
            )
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})

    async def _serve_own(self, handler: Handler, passage: Passage) -> None:
        code = 500
        try:
            code = await handler(passage)
        finally:
            self._conclude(passage, code)

    def _serve_open(self, handler: OpenHandler, arrival: Arrival) -> None:
        """A path that asks for no token of ours: /auth, and the webhooks, which know their callers otherwise."""
        waiting = handler(arrival, lambda code: self._served(arrival, code))
        if waiting is not None:
            self._later(_waited(waiting), arrival)

    def _served(self, arrival: Arrival, code: int) -> None:
        self._metrics.requests.count("", code, "", self._monotonic() - arrival.received_at)

    # --- ending ---

    def _finished(self, proxied: Proxied, code: int, error: UpstreamLost | None) -> None:
        passage = proxied.context
        self._authenticator.closed(passage.live, proxied)
        self._open -= 1
        if passage.plan.long_running:
            self._streams.discard(proxied)
        upstream = proxied.upstream
        if error is not None:
            upstream.failed(str(error))
            self._metrics.upstream_errors.inc(upstream.name, "timeout" if error.timeout else "lost")
            extra = {"upstream": upstream.name, "cause": str(error), "request_id": passage.arrival.audit_id}
            log.warning("an upstream could not be asked", extra=extra)
        elif upstream.failures:
            upstream.failures = 0
        self._conclude(passage, code)

    def _conclude(self, passage: Passage, code: int) -> None:
        plan, arrival = passage.plan, passage.arrival
        passage.ticket.leave()
        now = self._monotonic()
        upstream = plan.upstream
        self._metrics.requests.count(
            plan.info.verb, code, "" if upstream is None else upstream.name, now - arrival.received_at
        )
        if self._parts.admission:
            self._settle(plan, code)
        if plan.audit is not None:
            self._answers.audited(plan.audit, arrival, code, now, passage.recorder)

    def _settle(self, plan: Plan, code: int) -> None:
        attributes = Attributes(plan.user, plan.info)
        for provider in self._parts.admission:
            try:
                provider.settled(attributes, status=code)
            except Exception as error:
                log.error("an admission provider failed", extra={"cause": type(error).__name__})

    def _answer_failure(self, proxied: Proxied, code: int) -> None:
        self._answers.upstream_failed(proxied.context.arrival, code)

    # --- waiting ---

    def _later(self, work: Coroutine[Any, Any, None], arrival: Arrival) -> None:
        task = self._loop.create_task(self._guarded(work, arrival))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None], arrival: Arrival) -> None:
        """Nothing that goes wrong here may leave a client without an answer, or with the wrong one."""
        try:
            await work
        except Exception as error:
            self._failed(arrival, error)

    def _failed(self, arrival: Arrival, error: Exception) -> None:
        extra = {"request_id": arrival.audit_id, "cause": type(error).__name__}
        log.error("a request failed inside the gateway", extra=extra, exc_info=error)
        if arrival.exchange.head_sent:
            arrival.exchange.abort()
        elif not arrival.exchange.gone:
            self._answers.internal(arrival)


_UPGRADE_NAMES = {b"websocket": b"websocket", b"spdy/3.1": b"SPDY/3.1"}


async def _waited(waiting: Awaitable[None]) -> None:
    await waiting


def _first_segment(target: bytes) -> bytes:
    end = target.find(b"/", 1)
    segment = target if end < 0 else target[:end]
    return segment.partition(b"?")[0]


def _decoded(encoded: bytes) -> bytes | None:
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
