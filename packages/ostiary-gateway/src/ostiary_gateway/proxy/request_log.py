"""Record requests: audit events, metrics, the outcome for ``ostiary-gateway explain``, and the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ostiary.core.clock import Clock
from ostiary.core.scopes import Delegation
from ostiary.errors import AuditUnavailable
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.audit.auditor import Auditor, Prepared
from ostiary_gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary_gateway.audit.source_ips import Network, source_ips
from ostiary_gateway.authorization.cached_decision import OutOfScope
from ostiary_gateway.authorization.recent_decisions import RecentDecisions
from ostiary_gateway.http1.headers import FilteredHeaders
from ostiary_gateway.http1.request_head import RequestHead, RequestRefused
from ostiary_gateway.limits.admission_chain import AdmissionChain
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.context import RequestContext, RequestPlan
from ostiary_gateway.proxy.shadow_sampling import ShadowSampler

log = logging.getLogger("ostiary.gateway")


class RequestLog:
    """Records the requests of one engine. `conclude` is the last step of a request that was let through."""

    def __init__(
        self,
        auditor: Auditor,
        metrics: Metrics,
        clock: Clock,
        *,
        admission: AdmissionChain | None = None,
        trusted_proxies: Sequence[Network] = (),
        ended: EndedRequests | None = None,
        recent: RecentDecisions | None = None,
        shadow: ShadowSampler | None = None,
    ) -> None:
        self._auditor = auditor
        self._metrics = metrics
        self._monotonic = clock.monotonic
        self._now = clock.now
        self._admission = admission
        self._trusted_proxies = trusted_proxies
        self._ended = ended
        self._shadow = shadow
        self._recent = recent or RecentDecisions(clock=clock)

    def conclude(self, ctx: RequestContext, code: int, *, message: str = "") -> None:
        """Conclude a request that was let through: release its permit, count it and record it."""
        plan = ctx.plan
        ctx.release()
        now = self._monotonic()
        upstream = plan.upstream
        self._metrics.requests.count(
            plan.info.verb, code, "" if upstream is None else upstream.name, now - ctx.received_at
        )
        if self._admission is not None:
            self._admission.settle(Attributes(plan.user, plan.info), status=code)
        if plan.audit is not None:
            self.record_completion(plan.audit, ctx, code, now, message=message)
        if self._recent.is_watched and not plan.public:
            self.record_decision(ctx, plan, seconds=now - ctx.received_at)

    def conclude_at_once(
        self, plan: RequestPlan, scanned: FilteredHeaders, address: str, code: int, *, received_at: float
    ) -> None:
        """Like `conclude`, for a request that holds no permit. *address* is the client's."""
        now = self._monotonic()
        upstream = plan.upstream
        self._metrics.requests.count(plan.info.verb, code, "" if upstream is None else upstream.name, now - received_at)
        if plan.audit is None and self._shadow is None:
            return
        audit_id = self._auditor.audit_id()
        if self._shadow is not None:
            self._shadow.consider(audit_id, plan)
        if plan.audit is not None:
            known_address, origin = scanned.origin
            if known_address != address:
                origin = self.origin_of(scanned, address)
            try:
                plan.audit.complete(audit_id, origin, code, received_at=received_at, at=now)
            except AuditUnavailable as error:
                _log_lost_event(error)

    def conclude_transit(
        self,
        plan: RequestPlan,
        scanned: FilteredHeaders,
        address: str,
        code: int,
        *,
        audit_id: str,
        received_at: float,
        middle: str,
    ) -> None:
        """Like `conclude`, for a fast-path request that has released its permit.

        *middle* is that of `Prepared.complete`.
        """
        now = self._monotonic()
        upstream, audit = plan.upstream, plan.audit
        self._metrics.requests.count(plan.info.verb, code, "" if upstream is None else upstream.name, now - received_at)
        if audit is not None:
            known_address, origin = scanned.origin
            if known_address != address:
                origin = self.origin_of(scanned, address)
            try:
                audit.complete(audit_id, origin, code, received_at=received_at, at=now, middle=middle)
            except AuditUnavailable as error:
                _log_lost_event(error)

    def count(self, ctx: RequestContext, code: int, plan: RequestPlan | None = None) -> float:
        """Count a request that no upstream has responded to. Return the current time."""
        now = self._monotonic()
        self._metrics.requests.count(plan.info.verb if plan else "", code, "", now - ctx.received_at)
        return now

    # --- audit events ---

    def record_receipt(self, ctx: RequestContext) -> None:
        """Store the first event of a request; raises `AuditUnavailable` if it cannot be stored."""
        audit = ctx.plan.audit
        if audit is not None and audit.wants_received:
            audit.record_received(ctx.audit_id, self.origin(ctx), ctx.received_at)

    def record_start(self, ctx: RequestContext, code: int) -> None:
        """Record that the response head of a watch, log or terminal is being sent."""
        plan, audit = ctx.plan, ctx.plan.audit
        if self._recent.is_watched and not plan.public:
            self.record_decision(ctx, plan, seconds=None)
        if audit is None:
            return
        at, origin = self._monotonic(), self.origin(ctx)
        try:
            audit.record_started(ctx.audit_id, origin, code, received_at=ctx.received_at, at=at)
        except AuditUnavailable as error:
            _log_lost_event(error)

    def record_completion(
        self, audit: Prepared, ctx: RequestContext, code: int, now: float, *, message: str = ""
    ) -> None:
        """Record the last event of a request.

        *message* is why it was denied or where it was redirected, if not forwarded.
        """
        audit_id, origin, received_at = ctx.audit_id, self.origin(ctx), ctx.received_at
        recorder = ctx.recorder
        try:
            if message:
                audit.complete_with(audit_id, origin, code, received_at=received_at, at=now, message=message)
            elif recorder is None:
                audit.complete(audit_id, origin, code, received_at=received_at, at=now)
            else:
                audit.complete_with(
                    audit_id,
                    origin,
                    code,
                    received_at=received_at,
                    at=now,
                    request_body=recorder.request_body,
                    response_body=recorder.response_body,
                )
        except AuditUnavailable as error:
            # The response is already being sent. The next request fails before it has an effect.
            _log_lost_event(error)

    def record_panic(self, ctx: RequestContext) -> None:
        """Record an internal error during a request."""
        audit = ctx.plan.audit
        if audit is None:
            return
        at = self._monotonic()
        try:
            audit.record_panic(ctx.audit_id, self.origin(ctx), received_at=ctx.received_at, at=at)
        except AuditUnavailable as error:
            _log_lost_event(error)

    def prepare(
        self, ctx: RequestContext, info: RequestInfo, user: UserInfo, delegation: Delegation | None = None
    ) -> Prepared | None:
        """Return the common part of the audit events of an undecided request; None if the audit policy excludes it."""
        request_uri = ctx.exchange.request.target.decode("latin-1")
        return self._auditor.prepare(info, user, request_uri=request_uri, delegation=delegation)

    def record_unidentified(self, ctx: RequestContext, code: int, message: str) -> None:
        """Record a request that was responded to before its user was known."""
        request = ctx.exchange.request
        method = request.method.decode("ascii")
        path = request.target.partition(b"?")[0].decode("latin-1")
        info = RequestInfo(method.lower(), method, path)
        audit = self._auditor.prepare(info, None, request_uri=request.target.decode("latin-1"))
        if audit is None:
            return
        at = self._monotonic()
        try:
            audit.complete_with(
                ctx.audit_id, self.origin(ctx), code, received_at=ctx.received_at, at=at, message=message
            )
        except AuditUnavailable as error:
            _log_lost_event(error)

    def origin(self, ctx: RequestContext) -> str:
        """Return the source of the request for audit events. It is computed once per head."""
        return self.origin_of(ctx.scanned, ctx.exchange.connection.remote_address)

    def origin_of(self, scanned: FilteredHeaders, remote_address: str) -> str:
        """Like `origin`, for a request with these headers."""
        address, origin = scanned.origin
        if address == remote_address:
            return origin
        if scanned.forwarded_for and self._trusted_proxies:
            lines = [line.decode("latin-1") for line in scanned.forwarded_for]
            ips = source_ips(remote_address, forwarded_for=lines, trusted=self._trusted_proxies)
        else:
            ips = (remote_address,)
        origin = self._auditor.origin(ips, scanned.user_agent.decode("latin-1"))
        scanned.origin = (remote_address, origin)
        return origin

    # --- decisions, while an operator watches ---

    @property
    def is_watched(self) -> bool:
        """Whether an operator watches decisions as they are made."""
        return self._recent.is_watched

    def record_decision(
        self,
        ctx: RequestContext,
        plan: RequestPlan,
        *,
        seconds: float | None,
        question: RequestInfo | None = None,
    ) -> None:
        """Publish a decision to watchers. *question* is what was denied, if that is not what the plan is about."""
        ruling = plan.ruling
        self._recent.record(
            ctx.audit_id,
            Attributes(plan.user, question or plan.info),
            ruling,
            seconds=seconds,
            actor="" if plan.actor is None else plan.actor.username,
            scope=ruling.scope if isinstance(ruling, OutOfScope) else "",
        )

    # --- outcomes, for the log and for ``ostiary-gateway explain`` ---

    def record_refusal(self, ctx: RequestContext, code: int, reason: str, plan: RequestPlan | None) -> None:
        """Log a failed request, and record its outcome under the audit id that the client has received."""
        user = plan.user.username if plan is not None else ""
        address = "" if user else ctx.exchange.connection.remote_address
        extra = {"request_id": ctx.audit_id, "status": code, "user": user, "address": address, "cause": reason}
        log.info("a request was refused" if code < 500 else "a request failed", extra=extra)
        self.record_end(ctx, code, reason, plan)

    def record_end(self, ctx: RequestContext, code: int, reason: str, plan: RequestPlan | None) -> None:
        """Record the outcome of a request. Denials of the policy are recorded by the authorizer, with the decision."""
        if self._ended is None or (plan is not None and not plan.ruling.allowed):
            return
        user = plan.user.username if plan is not None else ""
        request = ctx.exchange.request
        address = ctx.exchange.connection.remote_address
        self._ended.record(
            EndedRequest(ctx.audit_id, self._now(), code, reason, *_method_and_path(request), address, user)
        )

    def record_unreadable(
        self, audit_id: str, address: str, request: RequestHead | None, refusal: RequestRefused
    ) -> None:
        """Record a request that the connection has rejected. *request* is None if only the first bytes were read."""
        extra = {"request_id": audit_id, "status": refusal.status, "address": address, "cause": refusal.message}
        log.info("a request was refused", extra=extra)
        if self._ended is not None:
            method, path = ("", "") if request is None else _method_and_path(request)
            self._ended.record(
                EndedRequest(audit_id, self._now(), refusal.status, refusal.message, method, path, address)
            )


def _method_and_path(request: RequestHead) -> tuple[str, str]:
    return request.method.decode("latin-1"), request.target.partition(b"?")[0].decode("latin-1")


def _log_lost_event(error: AuditUnavailable) -> None:
    log.error("an audit event could not be stored", extra={"cause": error.cause})
