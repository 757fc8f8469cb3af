"""The path of a request: who is it, what is asked, may they, pass it on. One engine per worker and configuration.

    exchange -> headers (scan) -> token (Authenticator) -> plan (what is asked, the decision) -> limits, admission
             -> audit -> upstream (Proxied) or an answer of our own

Called by a client's connection for every request. Most requests are like an earlier one of the same user. If the very
bytes of the head came before, all that follows from them is a `RememberedHead`; else the `Plan` is found by the request
line. In both cases nothing has to be waited for. What must be waited for (a token not in memory, a provider that asks
others, a turn in the queue) goes on in a task and comes back to the same steps.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ostiary.core.clock import Clock
from ostiary.core.implied_groups import impersonated
from ostiary.core.tokens import digest, well_formed
from ostiary.errors import AuditUnavailable, ProviderError, TooManyRequests
from ostiary.gateway.admit.limits import Limits, UserShare
from ostiary.gateway.audit.auditor import Auditor, Prepared
from ostiary.gateway.audit.ended_requests import EndedRequests
from ostiary.gateway.audit.source_ips import Network
from ostiary.gateway.authenticate.authenticator import Authenticator, LiveToken, bearer
from ostiary.gateway.authorize import impersonation as impersonate
from ostiary.gateway.authorize.chain import Authorizer, Ruling
from ostiary.gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary.gateway.http1.client import FailureKind, UpstreamLost
from ostiary.gateway.http1.exchange import Exchange
from ostiary.gateway.http1.headers import NO_DIGEST, BadHeader, HeaderFilter, websocket_token
from ostiary.gateway.http1.request_head import Refusal, RequestHead
from ostiary.gateway.http1.server import ServerConnection
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.request.answers import Answers
from ostiary.gateway.request.open_exchanges import OpenExchanges
from ostiary.gateway.request.own_token_review import is_token_review, review_own_token
from ostiary.gateway.request.questions import NoRoute, Questions, rule, rule_at_once
from ostiary.gateway.request.rejudge import Rejudge
from ostiary.gateway.request.remembered import Plans, RememberedHead
from ostiary.gateway.request.stages import Handler, OpenPath, OwnApi, Passage, Plan, Question
from ostiary.gateway.request.target import AmbiguousRequest, path_of
from ostiary.gateway.upstream.proxied import Proxied, Recorder
from ostiary.gateway.upstream.upstreams import Routes, Upstream
from ostiary.interfaces.admission import AdmissionProvider
from ostiary.model import Attributes, UserInfo
from ostiary.wire import status
from ostiary.wire.request.request_info import PROXY

log = logging.getLogger("ostiary.gateway")

# How long it is believed that no provider's policy has changed. They notice a change of their files much later.
POLICY_SECONDS = 0.001
# How many heads with the same request line are remembered per ruling: some clients put something new into each.
MOST_HEADS = 8
# No request that we answer ourselves is larger; each kind has a limit of its own besides.
LARGEST_OWN_BODY = 1024 * 1024


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
    open_paths: dict[bytes, OpenPath] = field(default_factory=dict)
    trusted_proxies: Sequence[Network] = ()
    realm: str = "ostiary"
    ended: EndedRequests | None = None
    # How long what is open may go on while nobody can say whether it is still allowed, in seconds.
    unconfirmed: float = 60.0


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
        self._open_prefixes = tuple(parts.open_paths)
        self._tasks: set[asyncio.Task[None]] = set()
        self._plans = Plans()
        self._open = OpenExchanges(parts.limits)
        self._seated = self._open.seated
        self._rejudge = Rejudge(
            self._open, parts.authorizer, parts.clock, unconfirmed=parts.unconfirmed, start=self._start
        )
        self._generation = parts.authorizer.generation
        self._look_again_at = float("-inf")
        self._questions = Questions(parts.routes, parts.own_apis, parts.self_reviews)
        self._answers = Answers(
            parts.authorizer,
            parts.auditor,
            parts.metrics,
            parts.clock,
            trusted_proxies=parts.trusted_proxies,
            realm=parts.realm,
            ended=parts.ended,
        )

    @property
    def busy(self) -> bool:
        """Whether a request that it let through has not ended yet."""
        return bool(self._open) or bool(self._tasks)

    @property
    def open_exchanges(self) -> OpenExchanges:
        return self._open

    def tick(self) -> None:
        """About once a second: what takes long counts as a stream, and what is no longer allowed is cut."""
        self._open.tick(self._monotonic())
        self._rejudge.tick()

    def hand_over(self, successor: Engine) -> None:
        """Another configuration has taken over: what is still open here goes on only if that one allows it, too."""
        self.forget_plans()
        self._authorizer = successor._authorizer
        self._look_again_at = float("-inf")
        self._rejudge.judge_by(successor._authorizer, successor._questions)

    def forget_plans(self) -> None:
        self._plans.clear()

    # --- arriving ---

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later. It never raises: whatever goes wrong inside is answered too."""
        passage = Passage(exchange, self._monotonic(), self._auditor.audit_id())
        exchange.audit_id = passage.audit_id
        try:
            known = exchange.request.known
            if known is not None and known.engine is self:
                self._again(passage, known)
            else:
                self._arrived(passage)
        except Exception as error:
            self._failed(passage, error)

    def record_unreadable(self, connection: ServerConnection, exchange: Exchange | None, refusal: Refusal) -> bytes:
        """A request that could not be read to its end is refused: its answer has an id that leads somewhere, too."""
        audit_id = (exchange.audit_id if exchange is not None else "") or self._auditor.audit_id()
        request = None if exchange is None else exchange.request
        self._answers.record_unreadable(audit_id, connection.remote_address, request, refusal)
        return b"Audit-Id: %s\r\n" % audit_id.encode()

    def _again(self, passage: Passage, known: RememberedHead) -> None:
        """The bytes of this head came before: what they ask is known, and whether that still holds is looked at."""
        passage.scanned = known.scanned
        plan = known.plan
        if plan is None:
            assert known.opened is not None
            self._serve_open(known.opened, passage)
            return
        live = self._authenticator.known(known.scanned.digest)
        if live is None:
            # What was worked out for it dies with the token, and not with the last head that came with it.
            known.live = None
            self._later(self._find_token(passage), passage)
        elif live is not known.live or not self._still_good(live, plan, passage.received_at):
            self._authenticated(passage, live)
        else:
            self._perform(passage, live, plan)

    def _arrived(self, passage: Passage) -> None:
        request = passage.exchange.request
        try:
            passage.scanned = self._headers.scan(request.headers)
        except BadHeader as error:
            self._answers.bad_request(passage, str(error))
            return
        target = path_of(request.target, request.host)
        if target.startswith(self._open_prefixes):
            opened = self._parts.open_paths.get(_first_segment(target))
            if opened is not None:
                self._serve_open(opened, passage)
                return
        self._identify(passage)

    def _identify(self, passage: Passage) -> None:
        try:
            token = self._token(passage)
        except BadHeader as error:
            self._answers.bad_request(passage, str(error))
            return
        if token is None:
            self._answers.unauthorized(passage, attempted=False)
            return
        passage.scanned.digest = digest(token)
        live = self._authenticator.known(passage.scanned.digest)
        if live is not None:
            self._authenticated(passage, live)
            return
        if not well_formed(token):
            # Nobody has to be asked about it.
            passage.scanned.digest = NO_DIGEST
        self._later(self._find_token(passage), passage)

    def _token(self, passage: Passage) -> bytes | None:
        authorization = passage.scanned.authorization
        if authorization is not None:
            return bearer(authorization)
        if passage.exchange.request.upgrade != b"websocket":
            return None
        encoded = websocket_token(passage.exchange.request.headers)
        return None if encoded is None else _decoded(encoded)

    async def _find_token(self, passage: Passage) -> None:
        address, token_digest = passage.exchange.connection.remote_address, passage.scanned.digest
        try:
            self._limits.failures.check(address)
            live = None if token_digest is NO_DIGEST else await self._authenticator.find(token_digest)
        except TooManyRequests as error:
            self._answers.too_many(passage, error, "failures")
            return
        except ProviderError as error:
            self._answers.store_unavailable(passage, error)
            return
        if passage.exchange.gone:
            return
        if live is None:
            self._limits.failures.failed(address)
            self._answers.unauthorized(passage, attempted=True)
        else:
            self._authenticated(passage, live)

    # --- deciding ---

    def _authenticated(self, passage: Passage, live: LiveToken) -> None:
        request = passage.exchange.request
        plan = self._plans.find(live.known_user, request)
        if plan is not None and not passage.scanned.impersonate and self._still_good(live, plan, passage.received_at):
            self._know(passage, live, plan)
            self._perform(passage, live, plan)
            return
        try:
            question = self._questions.of(request)
        except (AmbiguousRequest, ValueError) as error:
            self._answers.bad_request(passage, str(error))
            return
        except NoRoute:
            self._answers.no_route(passage)
            return
        if passage.scanned.impersonate:
            self._later(self._as_another(passage, live, question), passage)
            return
        ruling = rule_at_once(self._authorizer, live.user, question.required)
        if ruling is None:
            self._later(self._rule(passage, live, question), passage)
        else:
            self._planned(passage, live, question, ruling)

    def _still_good(self, live: LiveToken, plan: Plan, now: float) -> bool:
        """Whether a plan may be used again. When only its time is up, the same question is asked, and no more."""
        if now >= self._look_again_at:
            self._generation = self._authorizer.generation
            self._look_again_at = now + POLICY_SECONDS
        ruling = plan.ruling
        if ruling.generation == self._generation and now < ruling.until:
            return True
        again = rule_at_once(self._authorizer, live.user, plan.required) if plan.required else None
        if again is None or again.decision != ruling.decision:
            # Something else follows from it: the plan is made anew.
            return False
        plan.ruling = again
        plan.heads = 0
        return True

    async def _rule(self, passage: Passage, live: LiveToken, question: Question) -> None:
        try:
            ruling = await rule(self._authorizer, live.user, question.required)
        except ProviderError as error:
            self._answers.could_not_ask(passage, live.user, question.info, error)
            return
        if not passage.exchange.gone:
            self._planned(passage, live, question, ruling)

    async def _as_another(self, passage: Passage, live: LiveToken, question: Question) -> None:
        """``kubectl --as``: the user must be allowed to be the other, and the other to do what is asked."""
        try:
            other = impersonate.requested(list(passage.scanned.impersonate))
        except (BadHeader, UnicodeDecodeError) as error:
            self._answers.bad_request(passage, str(error))
            return
        asked = question
        try:
            permissions = tuple(impersonate.questions(other, upstream=question.info.upstream))
            for info in permissions:
                ruling = await rule(self._authorizer, live.user, (info,))
                if not ruling.decision.allowed:
                    # Never hidden: the question names nothing but what the user wrote.
                    decision = replace(ruling.decision, hidden=False)
                    asked = Question(info, (), question.target)
                    ruling = replace(ruling, decision=decision)
                    break
            else:
                other = impersonated(other)
                ruling = await rule(self._authorizer, other, question.required)
        except ProviderError as error:
            self._answers.could_not_ask(passage, live.user, question.info, error)
            return
        if not passage.exchange.gone:
            user = live.user if asked is not question else other
            plan = self._plan(passage, asked, ruling, user, actor=live.user)
            plan.actor, plan.impersonation = live.user, permissions
            self._perform(passage, live, plan)

    def _planned(self, passage: Passage, live: LiveToken, question: Question, ruling: Ruling) -> None:
        plan = self._plan(passage, question, ruling, live.user)
        self._plans.keep(live.known_user, passage.exchange.request, plan)
        self._perform(passage, live, plan)

    def _know(self, passage: Passage, live: LiveToken, plan: Plan) -> None:
        """Remember what follows from this head, when the same is asked for the second time.

        Not the token: its digest says as much to us, and nothing to others.
        """
        request = passage.exchange.request
        if plan.upstream is not None and plan.heads < MOST_HEADS and not request.upgrade and not plan.reviews_token:
            plan.heads += 1
            request.known = RememberedHead(self, passage.scanned, live, plan)
            request.known_owner, request.known_size = live.user.username, plan.size
            request.headers = []
            passage.scanned.authorization = None

    def _plan(
        self, passage: Passage, question: Question, ruling: Ruling, user: UserInfo, *, actor: UserInfo | None = None
    ) -> Plan:
        audit = self._auditor.prepare(
            question.info,
            actor or user,
            request_uri=question.target.decode("latin-1"),
            decision=ruling.decision,
            long_running=question.stream,
            impersonated=user if actor is not None and user != actor else None,
        )
        self._metrics.decisions.inc(ruling.decision.verdict.value)
        plan = Plan(ruling, question.info, user, question.upstream, question.handler, audit=audit)
        plan.long_running, plan.stream, plan.required = question.long_running, question.stream, question.required
        upstream = question.upstream
        plan.reviews_token = upstream is not None and upstream.is_kubernetes and is_token_review(question.info)
        if question.upstream is not None and ruling.decision.allowed:
            plan.at_once = not (question.stream or self._parts.admission or _is_watched(audit) or plan.reviews_token)
            target = question.upstream.forwarded_target(question.target)
            line = passage.exchange.request.method + b" " + target + b" HTTP/1.1\r\n"
            plan.head = line + question.upstream.host_line + question.upstream.identity(user)
        return plan

    # --- doing ---

    def _perform(self, passage: Passage, live: LiveToken, plan: Plan) -> None:
        passage.live, passage.plan = live, plan
        if live.revoked:
            # Withdrawn while it was being decided on.
            self._answers.unauthorized(passage, attempted=True)
            return
        if not plan.at_once and not plan.ruling.decision.allowed and not plan.reviews_token:
            self._answers.refused(passage, plan)
            return
        share = live.share
        connection = passage.exchange.connection
        account = connection.account
        if account is not share:
            if account is None:
                connection.charge(share)
            else:
                # Written out here: on a connection that many users share, every request does it.
                account.connections -= 1
                share.connections += 1
                connection.account = share
            if share.connections > share.most_connections:
                self._refuse_connection(passage)
                return
        try:
            leave = self._limits.open_stream(share) if plan.stream else self._limits.try_enter(share)
        except TooManyRequests as error:
            self._answers.too_many(passage, error, "streams" if plan.stream else "rate", plan)
            return
        if leave is None:
            self._later(self._wait_for_turn(passage, share), passage)
            return
        passage.leave = leave
        if plan.at_once:
            self._forward(passage)
        else:
            self._admit(passage)

    def _refuse_connection(self, passage: Passage) -> None:
        passage.exchange.close_after = True
        error = TooManyRequests("too many connections of this user are open", retry_after=1.0)
        self._answers.too_many(passage, error, "connections", passage.plan)

    async def _wait_for_turn(self, passage: Passage, share: UserShare) -> None:
        try:
            passage.leave = await self._limits.wait(share)
        except TooManyRequests as error:
            self._answers.too_many(passage, error, "concurrency", passage.plan)
            return
        if passage.exchange.gone:
            passage.release()
            passage.exchange.abort()
        elif await self._is_still_allowed(passage):
            self._admit(passage)

    async def _is_still_allowed(self, passage: Passage) -> bool:
        """Whether what was decided before a wait still holds; if not, the client is answered and the place given back.

        Called after every wait that a client can make long, and before anything is done.
        """
        plan = passage.plan
        try:
            ruling = await self._rejudge.ruling_now(passage) if plan.ruling.decision.allowed else plan.ruling
        except ProviderError as error:
            passage.release()
            self._answers.could_not_ask(passage, plan.user, plan.info, error)
            return False
        if passage.live.revoked:
            passage.release()
            self._answers.unauthorized(passage, attempted=True)
        elif ruling is None:
            passage.release()
            self._answers.no_route(passage)
        elif plan.ruling.decision.allowed and not ruling.decision.allowed:
            passage.release()
            target = passage.exchange.request.target
            question = Question(plan.info, plan.required, target, plan.upstream, plan.handler, stream=plan.stream)
            self._answers.refused(passage, self._plan(passage, question, ruling, plan.user, actor=plan.actor))
        else:
            return True
        return False

    def _admit(self, passage: Passage) -> None:
        plan = passage.plan
        if plan.reviews_token and not passage.body_was_read:
            self._later(self._review_token(passage), passage)
            return
        if self._parts.admission and not self._admitted(passage, plan):
            passage.release()
            return
        audit = plan.audit
        if audit is not None and audit.wants_received:
            try:
                audit.received(passage.audit_id, self._answers.origin(passage), passage.received_at)
            except AuditUnavailable as error:
                passage.release()
                log.error("a request was refused: its audit event cannot be stored", extra={"cause": error.cause})
                self._answers.internal(passage)
                return
        if plan.handler is not None:
            self._later(self._serve_own(plan.handler, passage), passage)
        else:
            self._forward(passage)

    async def _review_token(self, passage: Passage) -> None:
        """Answer a review of the sender's own token; anything else goes on its usual way."""
        try:
            answer = await review_own_token(passage)
        except ClientGone:
            passage.release()
            return
        passage.body_was_read = True
        if not await self._is_still_allowed(passage):
            return
        if answer is not None:
            passage.release()
            self._answers.reviewed(passage, answer)
        elif passage.plan.ruling.decision.allowed:
            self._admit(passage)
        else:
            passage.release()
            self._answers.refused(passage, passage.plan)

    def _admitted(self, passage: Passage, plan: Plan) -> bool:
        attributes, exchange = Attributes(plan.user, plan.info), passage.exchange
        size = None if exchange.request.chunked else exchange.request.content_length or 0
        for provider in self._parts.admission:
            try:
                admission = provider.admit(attributes, size=size)
                admitted = admission.admitted
            except Exception as error:
                log.error("an admission provider failed", extra={"cause": type(error).__name__})
                self._answers.internal(passage, plan)
                return False
            if not admitted:
                self._metrics.admissions.inc()
                self._answers.not_admitted(passage, plan, admission)
                return False
        return True

    def _forward(self, passage: Passage) -> None:
        plan, exchange = passage.plan, passage.exchange
        upstream = plan.upstream
        assert upstream is not None
        try:
            credential = upstream.credential()
        except OSError as error:
            self._upstream_failed(upstream, upstream.has_no_credential(error), passage)
            self._conclude(passage, 503)
            self._answers.upstream_failed(passage, 503, FailureKind.CREDENTIAL)
            return
        # For the upstream and for the client alike: what each of them did is found by it.
        audit_line = b"Audit-Id: " + passage.audit_id.encode()
        head = b"".join(
            (
                plan.head,
                credential,
                passage.scanned.lines,
                exchange.connection.forwarded_lines,
                audit_line,
                b"\r\n\r\n" if exchange.request.bare else _framing(exchange.request),
            )
        )
        if plan.audit is not None and plan.audit.wants_request_body:
            passage.recorder = self._recorder(plan.audit)
        timeout = float("inf") if plan.long_running else upstream.response_timeout
        proxied = Proxied(exchange, upstream, head, audit_line, timeout, self, passage)
        proxied.credential = credential if upstream.knows_us else None
        proxied.relayed = plan.info.modifier == PROXY
        self._authenticator.opened(passage.live, proxied)
        if plan.stream:
            proxied.tells_when_started = True
            self._open.streams[proxied] = None
        else:
            self._seated[proxied] = None
        proxied.recorder = passage.recorder
        try:
            proxied.start()
        except Exception:
            proxied.give_up()
            raise

    def _recorder(self, audit: Prepared) -> Recorder:
        return Recorder(self._auditor.largest_body, request=True, response=audit.wants_response_body)

    def proxied_started(self, proxied: Proxied, code: int) -> None:
        """The head of a watch, a log or a terminal is on its way."""
        passage: Passage = proxied.context
        if passage.plan.audit is None:
            return
        at = self._monotonic()
        origin = self._answers.origin(passage)
        try:
            passage.plan.audit.started(passage.audit_id, origin, code, received_at=passage.received_at, at=at)
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})

    async def _serve_own(self, handler: Handler, passage: Passage) -> None:
        request = passage.exchange.request
        if request.has_body and not passage.exchange.body_complete and not await self._read_own_body(passage):
            return
        code = 500
        try:
            code = await handler(passage)
        finally:
            self._conclude(passage, code)
        self._answers.own_api_answered(passage, code)

    async def _read_own_body(self, passage: Passage) -> bool:
        """Wait for the whole of a body that we answer ourselves: the right to ask may be withdrawn meanwhile."""
        exchange = passage.exchange
        try:
            body = await read_body(exchange, LARGEST_OWN_BODY)
        except ClientGone:
            self._conclude(passage, 0)
            return False
        except BodyTooLarge:
            passage.release()
            self._answers.send(passage, *status.too_large(), plan=passage.plan, reason="the body is too large")
            return False
        exchange.return_body(body)
        return await self._is_still_allowed(passage)

    def _serve_open(self, opened: OpenPath, passage: Passage) -> None:
        """A path that asks for no token of ours: /auth, and the webhooks, which know their callers otherwise."""
        waiting = opened.handler(passage, lambda code: self._served(opened, passage, code))
        if waiting is not None:
            self._later(_waited(waiting), passage)

    def _served(self, opened: OpenPath, passage: Passage, code: int) -> None:
        request = passage.exchange.request
        if not opened.records_refusals:
            self._answers.open_path_answered(passage, code)
        if opened.repeats and code == 200 and request.known is None:
            request.known = RememberedHead(self, passage.scanned, opened=opened)
            request.headers = []
            passage.scanned.authorization = None
        self._metrics.requests.count("", code, "", self._monotonic() - passage.received_at)

    # --- ending ---

    def proxied_finished(self, proxied: Proxied, code: int, error: UpstreamLost | None) -> None:
        passage: Passage = proxied.context
        self._authenticator.closed(passage.live, proxied)
        if self._seated.pop(proxied, _MISSING) is _MISSING:
            self._open.streams.pop(proxied, None)
        upstream = proxied.upstream
        if error is not None:
            self._upstream_failed(upstream, error, passage)
        elif upstream.failures:
            upstream.answered()
        self._conclude(passage, code)

    def _upstream_failed(self, upstream: Upstream, error: UpstreamLost, passage: Passage) -> None:
        upstream.failed(error, passage.audit_id)
        self._metrics.upstream_errors.inc(upstream.name, error.kind.value)

    def proxied_failed(self, proxied: Proxied, code: int, kind: FailureKind) -> None:
        self._answers.upstream_failed(proxied.context, code, kind)

    def proxied_streams(self, proxied: Proxied) -> bool:
        return self._open.become_stream(proxied)

    def proxied_refused(self, proxied: Proxied) -> None:
        self._answers.stream_refused(proxied.context)

    def _conclude(self, passage: Passage, code: int) -> None:
        plan = passage.plan
        passage.release()
        now = self._monotonic()
        upstream = plan.upstream
        self._metrics.requests.count(
            plan.info.verb, code, "" if upstream is None else upstream.name, now - passage.received_at
        )
        if self._parts.admission:
            self._settle(plan, code)
        if plan.audit is not None:
            self._answers.audited(plan.audit, passage, code, now)

    def _settle(self, plan: Plan, code: int) -> None:
        attributes = Attributes(plan.user, plan.info)
        for provider in self._parts.admission:
            try:
                provider.settled(attributes, status=code)
            except Exception as error:
                log.error("an admission provider failed", extra={"cause": type(error).__name__})

    # --- waiting ---

    def _later(self, work: Coroutine[Any, Any, None], passage: Passage) -> None:
        self._start(self._guarded(work, passage))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None], passage: Passage) -> None:
        """Nothing that goes wrong here may leave a client without an answer, or with the wrong one."""
        try:
            await work
        except Exception as error:
            self._failed(passage, error)

    def _failed(self, passage: Passage, error: Exception) -> None:
        extra = {"request_id": passage.audit_id, "cause": type(error).__name__}
        log.error("a request failed inside the gateway", extra=extra, exc_info=error)
        passage.release()
        self._answers.panicked(passage)
        if passage.exchange.head_sent:
            passage.exchange.abort()
        elif not passage.exchange.gone:
            self._answers.internal(passage)


_MISSING = object()
_UPGRADE_NAMES = {b"websocket": b"websocket", b"spdy/3.1": b"SPDY/3.1"}


def _framing(request: RequestHead) -> bytes:
    """The end of a head that says how its body is found, or which protocol comes next."""
    lines = b"\r\n"
    if request.chunked:
        lines += b"Transfer-Encoding: chunked\r\n"
    elif request.content_length is not None:
        lines += b"Content-Length: %d\r\n" % request.content_length
    if request.upgrade:
        lines += b"Connection: Upgrade\r\nUpgrade: " + _UPGRADE_NAMES[request.upgrade] + b"\r\n"
    return lines + b"\r\n"


def _is_watched(audit: Prepared | None) -> bool:
    """Whether its record begins before it is sent on."""
    return audit is not None and (audit.wants_received or audit.wants_request_body)


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
