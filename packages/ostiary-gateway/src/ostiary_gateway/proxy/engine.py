"""The request path. One `Engine` serves the requests of one configuration in a worker.

    authenticate   find the user of the token    authentication.authenticator; browsers: proxy.browsers
    resolve        attributes and route          proxy.resolver
    authorize      decide, make the plan         proxy.authorizer -> authorization.chain; proxy.plan_cache
    step up        check the step-up rules       proxy.step_up_gate
    admit          rate and concurrency limits   limits.limits, limits.admission_chain
    forward        to an upstream or a handler   proxy.forwarder, proxy.builtin_endpoints
    conclude       metrics and audit events      proxy.request_log

Most requests match a `CachedHead` or a cached plan and are forwarded synchronously. Anything that has to wait (token
lookup, authorization, a permit) continues in a task. Errors are sent by `proxy.responses`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from ostiary.core.clock import Clock
from ostiary.core.scopes import Delegation
from ostiary.errors import AuditUnavailable, ProviderError, TooManyRequests
from ostiary.model import Attributes, RequestInfo
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.audit.ended_requests import EndedRequests
from ostiary_gateway.audit.source_ips import Network
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.bearer_token import presented_token
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.authorization.cached_decision import CachedDecision
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.impersonation import requested_user
from ostiary_gateway.authorization.recent_decisions import RecentDecisions
from ostiary_gateway.capabilities import ability
from ostiary_gateway.http1.exchange import ClientConnection, Exchange, PassOn
from ostiary_gateway.http1.headers import NO_DIGEST, BadHeader, HeaderFilter
from ostiary_gateway.http1.request_head import RequestRefused
from ostiary_gateway.interfaces.admission import AdmissionProvider, CountsObjects, UpstreamApi, WriteOutcome
from ostiary_gateway.limits.admission_chain import AdmissionChain
from ostiary_gateway.limits.limits import Limits, charge_connection
from ostiary_gateway.limits.user_usage import UserUsage
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.active_requests import ActiveRequests
from ostiary_gateway.proxy.applications import Applications
from ostiary_gateway.proxy.authorizer import RequestAuthorizer
from ostiary_gateway.proxy.body_buffer import BodyBuffer
from ostiary_gateway.proxy.browsers import BrowserGate, BrowserPages, PublicPathAccess
from ostiary_gateway.proxy.builtin_endpoints import OpenPaths, OwnApis
from ostiary_gateway.proxy.capability_gate import CapabilityCheck
from ostiary_gateway.proxy.context import (
    ApiGroups,
    BuiltinApi,
    Handler,
    RequestAttributes,
    RequestContext,
    RequestPlan,
    UnauthenticatedRoute,
)
from ostiary_gateway.proxy.fast_path import AllowAgain, AllowedAgain, Transits, never_again
from ostiary_gateway.proxy.forwarder import Forwarder
from ostiary_gateway.proxy.head_cache import CachedHead, CachedHeaders, HeadCache
from ostiary_gateway.proxy.plan_cache import Planner, Plans
from ostiary_gateway.proxy.plan_templates import AlikeTargets, ObjectPlans
from ostiary_gateway.proxy.quota_gate import QuotaGate
from ostiary_gateway.proxy.reauthorize_streams import Rejudge
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.request_tasks import RequestTasks
from ostiary_gateway.proxy.resolver import NoRoute, RequestResolver, ResolvedRoute
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.proxy.revalidation import RecheckAfterWait
from ostiary_gateway.proxy.routes import Routes
from ostiary_gateway.proxy.shadow_sampling import ShadowSampler
from ostiary_gateway.proxy.step_up_gate import StepUpGate, StepUpParts
from ostiary_gateway.proxy.target import AmbiguousRequest, path_of
from ostiary_gateway.proxy.token_review import OwnTokenReviews
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.sessions import digest, well_formed

log = logging.getLogger("ostiary.gateway")

AnswerAllowed = Callable[[RequestLog, Responses, RequestContext], None]


@dataclass(slots=True)
class EngineServices:
    """The components that an engine is built from."""

    authenticator: TokenAuthenticator
    authorizer: Authorizer
    routes: Routes
    auditor: Auditor
    limits: Limits
    metrics: Metrics
    clock: Clock
    headers: HeaderFilter
    admission: Sequence[AdmissionProvider]
    # For admission providers that send requests to upstreams.
    upstream_api: UpstreamApi
    own_apis: Sequence[BuiltinApi]
    self_reviews: Handler | None
    api_groups: ApiGroups | None
    open_paths: dict[bytes, UnauthenticatedRoute]
    trusted_proxies: Sequence[Network]
    ended: EndedRequests
    # Feeds decisions to operators who watch them.
    recent: RecentDecisions
    # How long a stream may continue while it cannot be re-authorized, in seconds.
    unconfirmed: float
    # Set if an upstream is a web application or has public paths.
    applications: Applications | None = None
    pages: BrowserPages | None = None
    # The step-up rules; None if there are none.
    step_up: StepUpParts | None = None
    # Replaces forwarding of allowed requests, for external authorization: another proxy forwards them.
    answer_allowed: AnswerAllowed | None = None
    # Whether that response is just the `identity` of the plan.
    answers_identity: bool = False
    # Compares decisions with those of the clusters; None if no upstream has `shadow`.
    shadow: ShadowSampler | None = None
    # Redirect unauthenticated browsers from ``/`` to ``/auth``. Only valid on the gateway's own host.
    leads_to_sign_in: bool = True
    # If False, only tokens and decisions are cached between requests, and every request is planned in full.
    shortcuts: bool = True


class Engine:
    """Serves the requests of one configuration.

    A reload creates another engine; this one serves its in-flight requests.
    """

    # Overridden by the traced engine (`proxy.traced_engine`).
    records_type: ClassVar[type[RequestLog]] = RequestLog
    tasks_type: ClassVar[type[RequestTasks]] = RequestTasks
    open_paths_type: ClassVar[type[OpenPaths]] = OpenPaths
    own_apis_type: ClassVar[type[OwnApis]] = OwnApis

    def __init__(self, parts: EngineServices, loop: asyncio.AbstractEventLoop) -> None:
        self._headers = parts.headers
        self._authenticator = parts.authenticator
        self._limits = parts.limits
        self._admission = AdmissionChain(parts.admission) if parts.admission else None
        self._monotonic = parts.clock.monotonic
        self._audit_id = parts.auditor.audit_id
        self._questions = RequestResolver(parts.routes, parts.own_apis, parts.self_reviews, parts.api_groups)
        self._judge = RequestAuthorizer(parts.authorizer, self._questions)
        self._records = self.records_type(
            parts.auditor,
            parts.metrics,
            parts.clock,
            admission=self._admission,
            trusted_proxies=parts.trusted_proxies,
            ended=parts.ended,
            recent=parts.recent,
            shadow=parts.shadow,
        )
        self._answers = Responses(
            parts.authorizer,
            self._records,
            parts.metrics,
            refusal_page=None if parts.pages is None else parts.pages.refusal,
            leads_to_sign_in=parts.leads_to_sign_in,
        )
        self._plans = Plans() if parts.shortcuts else Plans(0, 0)
        self._planner = Planner(
            self._judge,
            parts.limits,
            parts.auditor,
            parts.metrics,
            has_admission=self._admission is not None,
            step_up=None if parts.step_up is None else parts.step_up.rules,
        )
        alike = AlikeTargets(self._go_alike)
        self._object_plans = ObjectPlans(self._planner, self._plans, self._judge, alike, shortcuts=parts.shortcuts)
        self._heads = HeadCache(passes_traces=parts.headers.passes_traces)
        # Called instead of `handle` for a request with a cached head; returns the identity for the other proxy.
        self.allow_again: AllowAgain = (
            AllowedAgain(
                self._heads, parts.authenticator, self._planner, parts.limits, self._records, parts.recent
            ).identity_of
            if parts.answers_identity
            else never_again
        )
        self._tasks = self.tasks_type(loop, self._answers, self._records)
        self._recheck = RecheckAfterWait(self._judge, self._planner, self._answers)
        self._open_paths = self.open_paths_type(parts.open_paths, self._heads, self._tasks, self._records)
        self._own_apis = self.own_apis_type(self._recheck, self._answers, self._records)
        self._token_reviews = OwnTokenReviews(self._recheck, self._answers, self._records)
        self._open = ActiveRequests(parts.limits)
        # API plugins that are no longer served, but still have in-flight requests.
        self._withdrawn: list[Upstream] = []
        self._rejudge = Rejudge(
            self._open, self._judge, parts.clock, unconfirmed=parts.unconfirmed, start=self._tasks.start
        )
        bodies = BodyBuffer(self._answers)
        self._capabilities = CapabilityCheck(
            self._judge,
            self._planner,
            self._answers,
            bodies,
            self._recheck,
            shows_bodies=parts.answer_allowed is None,
        )
        counting = [each for each in (ability(admission, CountsObjects) for admission in parts.admission) if each]
        self._objects = (
            QuotaGate(counting, parts.upstream_api, self._answers, self._tasks, self._recheck, bodies)
            if counting
            else None
        )
        forwarder = Forwarder(
            parts.authenticator.in_use,
            self._open,
            parts.auditor,
            parts.metrics,
            self._answers,
            self._records,
            self._objects,
        )
        self._shadow = parts.shadow
        self._forward = (
            forwarder.forward
            if parts.answer_allowed is None
            else partial(parts.answer_allowed, self._records, self._answers)
        )

        self._transits = Transits(
            self._heads,
            self._object_plans,
            self._planner,
            parts.authenticator,
            parts.limits,
            self._records,
            forwarder,
            self._open_paths,
            self._questions,
            parts.recent,
            monotonic=self._monotonic,
            audit_id=self._audit_id,
        )
        is_plain = parts.shortcuts and parts.answer_allowed is None and parts.shadow is None
        # Called instead of `handle` for requests with a cached head or header lines; None without a fast path.
        self.pass_on: PassOn | None = self._transits.pass_on if is_plain else None
        self._browsers = self._browser_gate(parts)
        self._step_up = self._step_up_gate(parts)

    def _step_up_gate(self, parts: EngineServices) -> StepUpGate | None:
        if parts.step_up is None:
            return None
        return StepUpGate(
            parts.step_up,
            authenticator=parts.authenticator,
            answers=self._answers,
            pages=parts.pages,
            metrics=parts.metrics,
            clock=parts.clock,
            ask=self._ask,
            # Another proxy does not wait for minutes.
            holds=parts.answer_allowed is None,
            trusted_proxies=parts.trusted_proxies,
        )

    def _browser_gate(self, parts: EngineServices) -> BrowserGate | None:
        if parts.applications is None or parts.pages is None:
            return None
        anonymous = PublicPathAccess(
            self._questions,
            self._planner,
            parts.limits,
            self._answers,
            self._admit,
            trusted_proxies=parts.trusted_proxies,
        )
        return BrowserGate(
            parts.routes,
            parts.applications,
            parts.pages,
            parts.own_apis,
            authenticator=parts.authenticator,
            limits=parts.limits,
            answers=self._answers,
            tasks=self._tasks,
            anonymous=anonymous,
            ask=self._ask,
            clock=parts.clock,
        )

    @property
    def busy(self) -> bool:
        """Whether requests that the engine has let through are still in flight."""
        return bool(self._open) or bool(self._transits) or bool(self._tasks)

    @property
    def open_exchanges(self) -> ActiveRequests:
        self._transits.list_all()
        return self._open

    def tick(self) -> None:
        """Run about once per second: count slow requests as streams and close streams that are no longer authorized."""
        self._transits.list_all()
        self._open.tick(self._monotonic())
        if self._withdrawn:
            self._cut_withdrawn()
        self._rejudge.tick()

    def hand_over(self, successor: Engine) -> None:
        """Let *successor* take over. In-flight requests continue only if the new configuration allows them."""
        self._transits.list_all()
        self.forget_plans()
        self._judge.follow(successor._judge)
        self._planner.read_generation_again()
        self._rejudge.judge_all_anew()

    def _go_alike(self, above: str) -> bool:
        """Return whether all paths with one segment more than *above*, which ends with a slash, have the same route."""
        return self._questions.go_alike(above) and not self._open_paths.begin_with(above)

    def forget_plans(self) -> None:
        self._plans.clear()
        self._object_plans.clear()

    def decide_again(
        self, token: CachedToken, required: tuple[RequestInfo, ...], delegation: Delegation | None
    ) -> CachedDecision | None:
        """Return the current decision of the policy, or None if that requires waiting."""
        return self._judge.decide(token.user, required, delegation) if required else None

    def forget_routes(self) -> None:
        """Routing changed: invalidate every cached plan."""
        self._questions.routing += 1
        self._planner.use_routing(self._questions.routing)

    def withdraw(self, upstream: Upstream) -> None:
        """Stop routing to *upstream*: close its streams. In-flight requests that are not streams may finish."""
        self._withdrawn.append(upstream)
        self._transits.list_all()
        self._cut_withdrawn()

    def _cut_withdrawn(self) -> None:
        for proxied in [each for each in self._open.streams if each.upstream in self._withdrawn]:
            proxied.cut()
        # A slow request becomes a stream later, and is closed then.
        self._withdrawn = [each for each in self._withdrawn if any(open.upstream is each for open in self._open)]

    def record_unreadable(
        self, connection: ClientConnection, exchange: Exchange | None, refusal: RequestRefused
    ) -> bytes:
        """Record a request that the connection could not read completely. Return the header line with its audit id."""
        audit_id = (exchange.audit_id if exchange is not None else "") or self._audit_id()
        request = None if exchange is None else exchange.request
        self._records.record_unreadable(audit_id, connection.remote_address, request, refusal)
        return b"Audit-Id: %s\r\n" % audit_id.encode()

    # --- begin ---

    def handle(self, exchange: Exchange) -> None:
        """Respond to a request, now or later. Never raises: internal errors get a response, too."""
        ctx = RequestContext(exchange, self._monotonic(), self._audit_id())
        exchange.audit_id = ctx.audit_id
        try:
            request = exchange.request
            head = request.known
            if type(head) is CachedHead and head.made_by is self._heads:
                self._begin_again(ctx, head)
            elif request.raw:
                self._begin_with_known_headers(ctx)
            else:
                self._begin(ctx)
        except Exception as error:
            self._tasks.fail(ctx, error)

    def _begin_again(self, ctx: RequestContext, head: CachedHead) -> None:
        """Serve a request whose head bytes are cached, if the cached token and plan are still valid."""
        ctx.scanned = head.scanned
        plan = head.plan
        if plan is None:
            assert head.open_path is not None
            self._open_paths.serve(head.open_path, ctx)
            return
        token = self._authenticator.recall(head.scanned.digest)
        if token is None:
            # Release the token here: it must not stay in memory until the last head that came with it is evicted.
            head.token = None
            self._tasks.start_for(ctx, self._look_up_token(ctx))
        elif token is not head.token or not self._planner.is_current(plan, token.user, ctx.received_at):
            self._ask(ctx, token)
        else:
            self._admit(ctx, token, plan)

    def _begin_with_known_headers(self, ctx: RequestContext) -> None:
        """Serve a request with cached header lines but another request line. Without a plan, parse it in full."""
        request = ctx.exchange.request
        headers = None if request.block is None else request.block.known
        if type(headers) is CachedHeaders and headers.made_by is self._heads:
            token = self._authenticator.recall(headers.scanned.digest)
            if token is not None and token is headers.token and self._open_paths.find(request.target) is None:
                ctx.scanned = headers.scanned
                plan = self._plan_at_once(ctx, token)
                if plan is not None:
                    self._admit(ctx, token, plan)
                    return
        self._begin(ctx)

    def _plan_at_once(self, ctx: RequestContext, token: CachedToken) -> RequestPlan | None:
        """Return a valid plan by which the request can be forwarded synchronously, or None."""
        request = ctx.exchange.request
        plan = self._plans.find(token.known_user, request)
        if plan is not None:
            if not plan.at_once or not self._planner.is_current(plan, token.user, ctx.received_at):
                return None
            self._heads.remember_plan(ctx, token, plan)
            return plan
        try:
            return self._plan_like_another(ctx, token, self._questions.locate(request))
        except (NoRoute, ValueError):
            return None

    def _begin(self, ctx: RequestContext) -> None:
        exchange, request = ctx.exchange, ctx.exchange.request
        if exchange.own_lines:
            # The headers contain these lines, too.
            request.traces, exchange.own_lines = exchange.own_lines, b""
        try:
            ctx.scanned = self._headers.scan(request.headers)
        except BadHeader as error:
            self._answers.send_bad_request(ctx, str(error))
            return
        open_path = self._open_paths.find(path_of(request.target, request.host))
        if open_path is not None:
            self._open_paths.serve(open_path, ctx)
        elif self._browsers is None or not self._browsers.take(ctx):
            self._identify(ctx)

    # --- authenticate ---

    def _identify(self, ctx: RequestContext) -> None:
        scanned = ctx.scanned
        try:
            presented = presented_token(scanned, ctx.exchange.request)
        except BadHeader as error:
            self._answers.send_bad_request(ctx, str(error))
            return
        if presented is None:
            self._answers.send_unauthorized(ctx, attempted=False)
            return
        scanned.digest = digest(presented)
        token = self._authenticator.recall(scanned.digest)
        if token is not None:
            self._ask(ctx, token)
            return
        if not well_formed(presented):
            # Not the format of our tokens: skip the store lookup.
            scanned.digest = NO_DIGEST
        self._tasks.start_for(ctx, self._look_up_token(ctx))

    async def _look_up_token(self, ctx: RequestContext) -> None:
        address, token_digest = ctx.exchange.connection.remote_address, ctx.scanned.digest
        token = None
        try:
            if token_digest is not NO_DIGEST:
                self._limits.failures.check_credential(token_digest)
                async with self._limits.lookup(address):
                    if ctx.exchange.gone:
                        return
                    token = await self._authenticator.find(token_digest)
            if ctx.exchange.gone:
                return
            if token is None:
                self._limits.failures.charge(address, token_digest)
        except TooManyRequests as error:
            self._answers.send_too_many(ctx, error, "failures")
        except ProviderError as error:
            self._answers.send_store_unavailable(ctx, error)
        else:
            if token is None:
                self._answers.send_unauthorized(ctx, attempted=True)
            else:
                self._ask(ctx, token)

    # --- resolve ---

    def _ask(self, ctx: RequestContext, token: CachedToken) -> None:
        request, impersonates = ctx.exchange.request, bool(ctx.scanned.impersonate)
        if not impersonates and self._browsers is None:
            self._heads.remember_headers(ctx, token)
        plan = self._plans.find(token.known_user, request)
        if plan is not None and not impersonates and self._planner.is_current(plan, token.user, ctx.received_at):
            self._heads.remember_plan(ctx, token, plan)
            self._admit(ctx, token, plan)
            return
        try:
            location = self._questions.locate(request)
            plan = self._plan_like_another(ctx, token, location)
            question = None if plan is not None else self._questions.at(location, request)
        except (AmbiguousRequest, ValueError) as error:
            self._answers.send_bad_request(ctx, str(error))
            return
        except NoRoute:
            self._answers.send_no_route(ctx)
            return
        if question is None:
            assert plan is not None
            self._admit(ctx, token, plan)
        elif impersonates:
            self._tasks.start_for(ctx, self._decide_as_another(ctx, token, question))
        else:
            self._decide(ctx, token, question, location)

    def _plan_like_another(
        self, ctx: RequestContext, token: CachedToken, location: ResolvedRoute
    ) -> RequestPlan | None:
        """Return a plan made for another object of the same kind whose name does not affect the decision."""
        if ctx.scanned.impersonate:
            return None
        return self._object_plans.find(token.known_user, ctx.exchange.request, location, ctx.received_at)

    # --- authorize ---

    def _decide(
        self, ctx: RequestContext, token: CachedToken, question: RequestAttributes, location: ResolvedRoute
    ) -> None:
        ruling = self._judge.decide(token.user, question.required, token.known_user.delegation)
        if ruling is None:
            self._tasks.start_for(ctx, self._wait_for_decision(ctx, token, question))
            return
        plan = self._keep_plan(ctx, token, question, ruling)
        if plan.at_once:
            self._object_plans.keep(token.known_user, ctx.exchange.request, location, plan)
        self._admit(ctx, token, plan)

    async def _wait_for_decision(self, ctx: RequestContext, token: CachedToken, question: RequestAttributes) -> None:
        try:
            ruling = await self._judge.authorize(token.user, question.required, token.known_user.delegation)
        except ProviderError as error:
            self._answers.send_undecided(ctx, token.user, question.info, error, token.known_user.delegation)
            return
        if not ctx.exchange.gone:
            self._admit(ctx, token, self._keep_plan(ctx, token, question, ruling))

    def _keep_plan(
        self, ctx: RequestContext, token: CachedToken, question: RequestAttributes, ruling: CachedDecision
    ) -> RequestPlan:
        request = ctx.exchange.request
        plan = self._planner.make(request, question, ruling, token.user, delegation=token.known_user.delegation)
        self._plans.keep(token.known_user, request, plan)
        return plan

    async def _decide_as_another(self, ctx: RequestContext, token: CachedToken, question: RequestAttributes) -> None:
        """``kubectl --as``: such requests are rare, so their plans are not cached."""
        try:
            user = requested_user(list(ctx.scanned.impersonate))
        except (BadHeader, UnicodeDecodeError) as error:
            self._answers.send_bad_request(ctx, str(error))
            return
        actor, request, delegation = token.user, ctx.exchange.request, token.known_user.delegation
        try:
            result = await self._judge.authorize_impersonation(actor, user, question, delegation)
        except ProviderError as error:
            self._answers.send_undecided(ctx, actor, question.info, error, delegation)
            return
        if not ctx.exchange.gone:
            plan = self._planner.make(
                request,
                result.question,
                result.ruling,
                result.user,
                actor=actor,
                impersonation=result.permissions,
                delegation=delegation,
            )
            self._admit(ctx, token, plan)

    # --- admit ---

    def _admit(self, ctx: RequestContext, token: CachedToken, plan: RequestPlan) -> None:
        ctx.token, ctx.plan = token, plan
        if token.revoked:
            # The token was revoked while the request was being authorized.
            self._answers.send_unauthorized(ctx, attempted=True)
            return
        if self._shadow is not None:
            self._shadow.consider(ctx.audit_id, plan)
        if not plan.at_once:
            if not plan.ruling.allowed and not plan.reviews_token:
                self._answers.send_refusal(ctx, plan)
                return
            if plan.step_up is not None and self._step_up is not None:
                rule = self._step_up.unmet_rule(ctx)
                if rule is not None:
                    self._tasks.start_for(ctx, self._step_up.handle_unmet(ctx, rule))
                    return
        share = plan.share
        connection = ctx.exchange.connection
        if connection.account is not share and not charge_connection(connection, share):
            self._answers.send_too_many_connections(ctx)
            return
        try:
            leave = self._limits.open_stream(share) if plan.stream else self._limits.try_enter(share)
        except TooManyRequests as error:
            self._answers.send_too_many(ctx, error, "streams" if plan.stream else "rate", plan)
            return
        if leave is None:
            self._tasks.start_for(ctx, self._wait_for_seat(ctx, share))
            return
        ctx.leave = leave
        if plan.at_once:
            self._forward(ctx)
        else:
            self._prepare(ctx)

    async def _wait_for_seat(self, ctx: RequestContext, share: UserUsage) -> None:
        try:
            ctx.leave = await self._limits.wait(share)
        except TooManyRequests as error:
            self._answers.send_too_many(ctx, error, "concurrency", ctx.plan)
            return
        if ctx.exchange.gone:
            ctx.release()
        elif await self._recheck.is_still_allowed(ctx):
            self._prepare(ctx)

    def _prepare(self, ctx: RequestContext) -> None:
        """Run the gates of the plan (token review, capabilities, admission, quota), then forward.

        See `RequestPlan.at_once`.
        """
        plan = ctx.plan
        if plan.reviews_token and not ctx.body_was_read:
            self._tasks.start_for(ctx, self._review_token(ctx))
            return
        if plan.reads_capabilities:
            self._tasks.start_for(ctx, self._check_capabilities(ctx))
            return
        if self._admission is not None and not self._is_admitted(ctx, self._admission):
            ctx.release()
            return
        if self._objects is not None and (counting := self._objects.covering(ctx)):
            self._tasks.start_for(ctx, self._hold_objects(ctx, self._objects, counting))
            return
        self._begin_forwarding(ctx)

    async def _check_capabilities(self, ctx: RequestContext) -> None:
        if not await self._capabilities.is_allowed(ctx):
            return
        rule = None if self._step_up is None else self._step_up.unmet_rule(ctx)
        if rule is None or self._step_up is None:
            self._prepare(ctx)
            return
        # The rule is about a capability. The capabilities of the object were unknown until the body was read.
        ctx.release()
        await self._step_up.handle_unmet(ctx, rule)

    async def _hold_objects(self, ctx: RequestContext, objects: QuotaGate, counting: Sequence[CountsObjects]) -> None:
        if await objects.hold(ctx, counting):
            self._begin_forwarding(ctx)

    def _begin_forwarding(self, ctx: RequestContext) -> None:
        plan = ctx.plan
        try:
            self._records.record_receipt(ctx)
        except AuditUnavailable as error:
            ctx.release()
            if self._objects is not None:
                self._objects.settle(ctx, WriteOutcome.NOT_DONE, 0, None)
            log.error("a request was refused: its audit event cannot be stored", extra={"cause": error.cause})
            self._answers.send_internal_error(ctx)
            return
        if plan.handler is not None:
            self._tasks.start_for(ctx, self._own_apis.serve(plan.handler, ctx))
        else:
            self._forward(ctx)

    async def _review_token(self, ctx: RequestContext) -> None:
        if await self._token_reviews.answer_or_pass(ctx):
            self._prepare(ctx)

    def _is_admitted(self, ctx: RequestContext, admission: AdmissionChain) -> bool:
        plan, request = ctx.plan, ctx.exchange.request
        size = None if request.chunked else request.content_length or 0
        try:
            refusal = admission.refusal_of(Attributes(plan.user, plan.info), size=size)
        except ProviderError:
            self._answers.send_internal_error(ctx, plan)
            return False
        if refusal is not None:
            self._answers.send_not_admitted(ctx, refusal)
        return refusal is None
