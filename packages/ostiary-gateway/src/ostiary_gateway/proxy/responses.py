"""Error responses and redirects of the gateway itself, as opposed to those of an upstream.

Each response is counted and recorded as it is sent. The texts are those of Kubernetes (`ostiary.wire.status`). The
reason goes to the log and the audit event, which the operator finds by the ``Audit-Id`` of the response.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from ostiary.core.scopes import Delegation
from ostiary.errors import ProviderError, TooManyRequests
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary.wire import status
from ostiary_gateway.audit.auditor import Prepared
from ostiary_gateway.authentication.cookies import browser_request
from ostiary_gateway.authorization.cached_decision import OutOfScope
from ostiary_gateway.authorization.capabilities import CapabilityRefused
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.step_up import StepUpRule, describe
from ostiary_gateway.http1.accept import prefers_html
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.http1.response import FailureKind
from ostiary_gateway.interfaces.admission import Admission, UpstreamAnswer
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.context import RequestContext, RequestPlan
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.wire.audit import authentication_failed

log = logging.getLogger("ostiary.gateway")

_JSON = (b"Content-Type", b"application/json")
_NOSNIFF = (b"X-Content-Type-Options", b"nosniff")
_NO_CACHE = (b"Cache-Control", b"no-cache, private")

Headers = list[tuple[bytes, bytes]]
Page = tuple[int, Headers, bytes]
# Request context, status, message and prefix of the application -> status, headers and body of a page.
RefusalPage = Callable[[RequestContext, int, str, str], Page]
_UNAVAILABLE = "the application is unavailable"


class Responses:
    """Sends the error responses of one engine."""

    def __init__(
        self,
        authorizer: Authorizer,
        records: RequestLog,
        metrics: Metrics,
        *,
        refusal_page: RefusalPage | None = None,
        leads_to_sign_in: bool = True,
    ) -> None:
        self._refusal_page = refusal_page
        self._leads_to_sign_in = leads_to_sign_in
        self._authorizer = authorizer
        self._records = records
        self._metrics = metrics
        self._challenge_absent = status.www_authenticate(False).encode()
        self._challenge_invalid = status.www_authenticate(True).encode()

    # --- rejected and denied requests ---

    def send_unauthorized(self, ctx: RequestContext, *, attempted: bool) -> None:
        """401. Does not reveal whether a token is unknown, expired or revoked. Bearer is the only challenge."""
        self._metrics.authentications.inc("refused" if attempted else "absent")
        if not attempted and self._leads_to_sign_in and _is_browser_at_the_root(ctx.exchange.request):
            # A user who typed the gateway's address is redirected to the sign-in page.
            self.send(ctx, 303, b"", more=[(b"Location", b"/auth"), (b"Vary", b"Accept")], reason="redirected to /auth")
            return
        challenge = self._challenge_invalid if attempted else self._challenge_absent
        reason = authentication_failed(("bearer",) if attempted else ())
        code, body = status.unauthorized()
        self.send(ctx, code, body, more=[(b"WWW-Authenticate", challenge)], reason=reason)

    def send_refusal(self, ctx: RequestContext, plan: RequestPlan) -> None:
        """403, or 404 for a hidden denial: indistinguishable from the response for a missing object."""
        decision, attributes = plan.ruling, Attributes(plan.user, plan.info)
        # The request attributes that were denied, for a later explanation.
        refused = decision.question if isinstance(decision, CapabilityRefused) else plan.info
        self._authorizer.record(Attributes(plan.user, refused), decision, ctx.audit_id)
        # The owner of a token may know its scope, and the author of an object its contents.
        reason = decision.reason if isinstance(decision, (OutOfScope, CapabilityRefused)) else ""
        code, body = status.not_found(plan.info) if decision.hidden else status.forbidden(attributes, reason)
        if self._records.is_watched:
            self._records.record_decision(ctx, plan, seconds=None, question=refused)
        message = (
            f"you are signed in as {plan.user.username}, and have no permission for this page"
            if code == 403
            else "page not found"
        )
        page = self._page_for(ctx, plan.upstream, code, message)
        if page is not None:
            self.send_page(ctx, *page, plan=plan)
            return
        self.send(ctx, code, body, plan=plan)

    def _page_for(self, ctx: RequestContext, upstream: Upstream | None, code: int, message: str) -> Page | None:
        """Return the error page to send instead of a ``Status``; None if this is not a page of a web application."""
        if self._refusal_page is None or upstream is None or not _shows_page(ctx, upstream):
            return None
        return self._refusal_page(ctx, code, message, upstream.settings.prefix)

    def send_sign_in_required(self, ctx: RequestContext, *, attempted: bool) -> None:
        """401 for a script of a web application or another client: the user has to load a page and sign in there."""
        self._metrics.authentications.inc("refused" if attempted else "absent")
        challenge = self._challenge_invalid if attempted else self._challenge_absent
        more = [(b"WWW-Authenticate", challenge), (b"X-Ostiary-Sign-In", b"required")]
        reason = authentication_failed(("cookie",) if attempted else ())
        self.send(ctx, *status.sign_in_required(), more=more, reason=reason)

    def send_step_up_required(self, ctx: RequestContext, rule: StepUpRule) -> None:
        """401: the user can step up and send the request again (RFC 9470)."""
        required = rule.required
        message = f"step-up required by the rule {rule.name}: {describe(required)}; run: ostiary login --step-up"
        max_age = None if required.max_age is None else required.max_age.total_seconds()
        challenge = status.step_up_challenge(message, acr_values=required.acr_values, max_age=max_age)
        upstream = ctx.plan.upstream
        is_application = upstream is not None and upstream.settings.is_application
        sign_in = [(b"X-Ostiary-Sign-In", b"required")] if is_application else []
        self.send(
            ctx,
            *status.step_up_required(message),
            plan=ctx.plan,
            more=[(b"WWW-Authenticate", challenge.encode()), *sign_in],
            reason=f"step-up required by the rule {rule.name}: {describe(required)}",
            message=message,
        )

    def send_step_up_impossible(self, ctx: RequestContext, rule: StepUpRule, why: str) -> None:
        """403: the sender cannot satisfy the step-up rule."""
        reason = f"the rule {rule.name} requires {describe(rule.required)}, and {why}"
        answer = status.not_admitted(ctx.plan.info, reason)
        self.send(ctx, *answer, plan=ctx.plan, reason=reason, message=reason)

    def send_cross_site(self, ctx: RequestContext, reason: str) -> None:
        """403: a page of another site made the browser send the request."""
        self.send(ctx, *status.refused_origin(reason), reason=reason)

    def send_page(
        self,
        ctx: RequestContext,
        code: int,
        headers: Headers,
        body: bytes,
        *,
        plan: RequestPlan | None = None,
        reason: str = "",
    ) -> None:
        """Send a page or a redirect to a browser. It is counted and recorded like any other response."""
        self.send(ctx, code, body, plan=plan, reason=reason, page=headers)

    def send_bad_request(self, ctx: RequestContext, message: str) -> None:
        self.send(ctx, *status.bad_request(message), reason=message)

    def send_no_route(self, ctx: RequestContext) -> None:
        """404: no upstream serves this host and path."""
        self.send(ctx, *status.no_route(), reason="no upstream serves this host and path")

    def send_too_large(self, ctx: RequestContext) -> None:
        self.send(ctx, *status.too_large(), plan=ctx.plan, reason="the body is too large")

    def send_too_many(
        self, ctx: RequestContext, error: TooManyRequests, limit: str, plan: RequestPlan | None = None
    ) -> None:
        if ctx.exchange.gone:
            return
        self._metrics.rate_limited.inc(limit)
        seconds = max(1, math.ceil(error.retry_after))
        code, body = status.too_many(seconds)
        retry = [(b"Retry-After", str(seconds).encode())]
        self.send(ctx, code, body, plan=plan, more=retry, reason=f"over the limit: {limit}")

    def send_too_many_connections(self, ctx: RequestContext) -> None:
        ctx.exchange.close_after = True
        error = TooManyRequests("too many connections of this user are open", retry_after=1.0)
        self.send_too_many(ctx, error, "connections", ctx.plan)

    def send_not_admitted(self, ctx: RequestContext, admission: Admission) -> None:
        plan = ctx.plan
        self._metrics.admissions.inc()
        if admission.retry_after is None:
            code, body = status.not_admitted(plan.info, admission.reason)
            self.send(ctx, code, body, plan=plan, reason=admission.reason, message=admission.reason)
            return
        error = TooManyRequests(admission.reason, retry_after=admission.retry_after)
        self.send_too_many(ctx, error, "admission", plan)

    def send_answer_of_upstream(self, ctx: RequestContext, answer: UpstreamAnswer) -> None:
        """Send the upstream's response to a dry run of this request, which failed."""
        plan = ctx.plan
        now = self._records.count(ctx, answer.status, plan)
        if plan.audit is not None:
            self._records.record_completion(plan.audit, ctx, answer.status, now)
        if not ctx.exchange.gone:
            kind = (b"Content-Type", answer.content_type.encode("latin-1") or b"application/json")
            headers = [(b"Audit-Id", ctx.audit_id.encode()), _NO_CACHE, kind]
            ctx.exchange.respond(answer.status, headers, answer.body)

    # --- failures ---

    def send_uncounted(self, ctx: RequestContext, error: ProviderError) -> None:
        """503: it could not be determined whether the request is within its quota."""
        cause = error.cause or error.summary
        log.error("a request could not be counted", extra={"request_id": ctx.audit_id, "cause": cause})
        self._metrics.provider_errors.inc("admission", "")
        self.send(ctx, *status.quota_unavailable(), plan=ctx.plan, reason=f"the quota could not be counted: {cause}")

    def send_undecided(
        self,
        ctx: RequestContext,
        user: UserInfo,
        info: RequestInfo,
        error: ProviderError,
        delegation: Delegation | None = None,
    ) -> None:
        """500: it could not be determined whether the request is allowed."""
        extra = {"request_id": ctx.audit_id, "cause": error.cause or error.summary}
        log.error("a request could not be decided", extra=extra)
        self._metrics.provider_errors.inc("authorization", "")
        audit = self._records.prepare(ctx, info, user, delegation)
        reason = f"could not be decided: {error.cause or error.summary}"
        self.send(ctx, *status.internal(), audit=audit, reason=reason)

    def send_store_unavailable(
        self, ctx: RequestContext, error: ProviderError, upstream: Upstream | None = None
    ) -> None:
        """503: the token could not be looked up. *upstream* is set if it is the session of a web application."""
        extra = {"request_id": ctx.audit_id, "cause": error.cause or error.summary}
        log.error("a token could not be looked up", extra=extra)
        self._metrics.provider_errors.inc("token_store", "")
        reason = "the token could not be looked up"
        page = self._page_for(ctx, upstream, 503, "your session cannot be checked")
        if page is not None:
            self.send_page(ctx, *page, reason=reason)
            return
        self.send(ctx, *status.upstream_failed(503), reason=reason)

    def send_internal_error(self, ctx: RequestContext, plan: RequestPlan | None = None) -> None:
        """500: the gateway failed, or the audit event of this request cannot be stored."""
        self.send(ctx, *status.internal(), plan=plan, reason="the gateway failed, or could not store the audit event")

    # --- for requests that are already counted and recorded ---

    def send_redirect(self, ctx: RequestContext, location: bytes) -> None:
        """307 to the backend itself. The URL is a credential, so it must not be cached or sent as a ``Referer``."""
        audit_id = (b"Audit-Id", ctx.audit_id.encode())
        no_store = (b"Cache-Control", b"no-store")
        no_referrer = (b"Referrer-Policy", b"no-referrer")
        ctx.exchange.respond(307, [audit_id, (b"Location", location), no_store, no_referrer], b"")

    def send_upstream_failure(self, ctx: RequestContext, code: int, kind: FailureKind = FailureKind.LOST) -> None:
        """502, 503 or 504."""
        rejected = kind is FailureKind.CREDENTIAL
        answer = status.gateway_unauthenticated() if rejected else status.upstream_failed(code)
        reason = "the upstream rejects the gateway's own credential" if rejected else "the upstream could not be asked"
        # Not logged for each request: an outage fails every request and is logged once in a while.
        self._records.record_end(ctx, code, reason, ctx.plan)
        self._respond_unavailable(ctx, answer)

    def send_unsigned(self, ctx: RequestContext, error: ProviderError) -> None:
        """503: no JWT with the user's identity can be signed for the upstream."""
        cause = error.cause or error.summary
        log.error("no JWT can be signed for an upstream", extra={"request_id": ctx.audit_id, "cause": cause})
        self._records.record_end(ctx, 503, f"no JWT can be signed for the upstream: {cause}", ctx.plan)
        self._respond_unavailable(ctx, status.upstream_failed(503))

    def _respond_unavailable(self, ctx: RequestContext, answer: status.Answer) -> None:
        page = self._page_for(ctx, ctx.plan.upstream, answer.code, _UNAVAILABLE)
        if page is None:
            _respond(ctx, *answer, [])
        else:
            _respond_page(ctx, *page)

    def send_too_many_streams(self, ctx: RequestContext) -> None:
        """429: the response would be a stream, and the user has too many."""
        self._metrics.rate_limited.inc("streams")
        self._records.record_refusal(ctx, 429, "over the limit: streams", ctx.plan)
        _respond(ctx, *status.too_many(1), [(b"Retry-After", b"1")])

    # --- sending ---

    def send(
        self,
        ctx: RequestContext,
        code: int,
        body: bytes,
        *,
        plan: RequestPlan | None = None,
        audit: Prepared | None = None,
        more: Headers | None = None,
        reason: str = "",
        message: str = "",
        page: Headers | None = None,
    ) -> None:
        """Send a response, count it and record it. *reason* is for the operator, *message* for the audit event.

        *page* holds all headers of a body that is not a ``Status``.
        """
        if ctx.exchange.gone:
            return
        now = self._records.count(ctx, code, plan)
        audit = audit or (plan.audit if plan is not None else None)
        if audit is not None:
            self._records.record_completion(audit, ctx, code, now, message=message)
        elif plan is None:
            self._records.record_unidentified(ctx, code, reason)
        if code >= 400:
            self._records.record_refusal(ctx, code, reason, plan)
        if page is not None:
            _respond_page(ctx, code, page, body)
        else:
            _respond(ctx, code, body, more or [])


def _respond(ctx: RequestContext, code: int, body: bytes, more: Headers) -> None:
    headers = [(b"Audit-Id", ctx.audit_id.encode()), _NO_CACHE, _JSON, *more]
    if code != 404:
        # Kubernetes does not set it on a 404, so it would reveal hidden objects.
        headers.append(_NOSNIFF)
    ctx.exchange.respond(code, headers, body)


def _respond_page(ctx: RequestContext, code: int, headers: Headers, body: bytes) -> None:
    ctx.exchange.respond(code, [(b"Audit-Id", ctx.audit_id.encode()), *headers], body)


def _shows_page(ctx: RequestContext, upstream: Upstream) -> bool:
    """Whether the browser shows the response as a page of a web application."""
    if not upstream.settings.is_application:
        return False
    request = ctx.exchange.request
    return browser_request(request.method, request.headers, upgrade=request.upgrade).shows_page


def _is_browser_at_the_root(request: RequestHead) -> bool:
    """Whether a user has opened ``/`` in a browser. Clients that do not accept HTML get the usual 401."""
    if request.method != b"GET" or request.target.partition(b"?")[0] != b"/" or request.upgrade:
        return False
    headers = {name.lower(): value for name, value in request.headers}
    if headers.get(b"sec-fetch-dest", b"document") != b"document":
        return False
    return prefers_html(headers.get(b"accept", b"").decode("latin-1"))


def send_status(ctx: RequestContext, answer: status.Answer, *headers: tuple[bytes, bytes]) -> int:
    """Send a Kubernetes ``Status``. Return the status that was sent, or 0 if the client is gone."""
    if ctx.exchange.gone:
        return 0
    lines = b"Audit-Id: %s\r\nContent-Type: application/json\r\n" % ctx.audit_id.encode()
    for header in headers:
        lines += b"%s: %s\r\n" % header
    ctx.exchange.respond_lines(answer.code, lines, answer.body)
    return answer.code
