"""Forward an allowed request to its upstream, or redirect the client, and conclude the request when it has ended."""

from __future__ import annotations

from ostiary.errors import ProviderError
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.authentication.token_cache import TokenCache
from ostiary_gateway.http1.client_connection import UpstreamConnection
from ostiary_gateway.http1.request_head import framing_lines
from ostiary_gateway.http1.response import FailureKind, ResponseHandler, UpstreamLost
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.active_requests import ActiveRequests
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.proxied_request import ProxiedRequest
from ostiary_gateway.proxy.quota_gate import QuotaGate, answer_recorder, outcome_of
from ostiary_gateway.proxy.recorder import AnswerRecorder, Recorder
from ostiary_gateway.proxy.redirects import Redirects
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.wire.action_token import AllowedAction
from ostiary_gateway.wire.request_info import PROXY

_MISSING = object()


class Forwarder:
    """Forwards the requests of one engine.

    `ProxiedRequest` moves the bytes and calls back for the events of a request.
    """

    def __init__(
        self,
        tokens_in_use: TokenCache,
        open_exchanges: ActiveRequests,
        auditor: Auditor,
        metrics: Metrics,
        answers: Responses,
        records: RequestLog,
        objects: QuotaGate | None = None,
    ) -> None:
        self._tokens_in_use = tokens_in_use
        self._open = open_exchanges
        self._seated = open_exchanges.seated
        self._auditor = auditor
        self._metrics = metrics
        self._answers = answers
        self._records = records
        self._objects = objects

    def forward(self, ctx: RequestContext) -> None:
        plan, exchange = ctx.plan, ctx.exchange
        upstream = plan.upstream
        assert upstream is not None
        if plan.redirected and upstream.redirects is not None and self._redirect(ctx, upstream.redirects):
            return
        assertion = b""
        try:
            credential = upstream.credential()
            if upstream.assertions is not None and not plan.public:
                assertion = upstream.assertions.line(ctx.token.session, plan.user)
        except ProviderError as error:
            self._records.conclude(ctx, 503)
            self._settle_objects(ctx, 0, sent=False)
            self._answers.send_unsigned(ctx, error)
            return
        except OSError as error:
            self._report_failure(upstream, upstream.credential_failure(error), ctx)
            self._records.conclude(ctx, 503)
            self._settle_objects(ctx, 0, sent=False)
            self._answers.send_upstream_failure(ctx, 503, FailureKind.CREDENTIAL)
            return
        # Sent to the upstream and to the client, so that the logs of both can be correlated.
        audit_line = b"Audit-Id: " + ctx.audit_id.encode()
        head = b"".join(
            (
                plan.head,
                credential,
                assertion,
                ctx.scanned.lines,
                exchange.own_lines,
                exchange.connection.forwarded_lines,
                audit_line,
                b"\r\n\r\n" if exchange.request.bare else framing_lines(exchange.request),
            )
        )
        audit = plan.audit
        if audit is not None and audit.wants_request_body:
            ctx.recorder = Recorder(self._auditor.largest_body, request=True, response=audit.wants_response_body)
        proxied = self._proxied(ctx, upstream, head, audit_line, credential)
        self._tokens_in_use.add_stream(ctx.token, proxied)
        if plan.stream:
            proxied.tells_when_started = True
            self._open.streams[proxied] = None
        else:
            self._seated[proxied] = None
        proxied.recorder = (ctx.holds and answer_recorder(ctx)) or ctx.recorder
        try:
            proxied.start()
        except Exception:
            proxied.give_up()
            raise

    def take_over(
        self,
        ctx: RequestContext,
        head: bytes,
        audit_line: bytes,
        credential: bytes,
        connection: UpstreamConnection,
        receiver: ResponseHandler,
    ) -> ProxiedRequest[RequestContext]:
        """Take over a request from *receiver*, which has sent *head* on *connection*."""
        upstream = ctx.plan.upstream
        assert upstream is not None
        proxied = self._proxied(ctx, upstream, head, audit_line, credential)
        self._tokens_in_use.add_stream(ctx.token, proxied)
        self._seated[proxied] = None
        proxied.take_over(connection, receiver)
        return proxied

    def _proxied(
        self, ctx: RequestContext, upstream: Upstream, head: bytes, audit_line: bytes, credential: bytes
    ) -> ProxiedRequest[RequestContext]:
        plan = ctx.plan
        timeout = float("inf") if plan.long_running else upstream.response_timeout
        proxied = ProxiedRequest(ctx.exchange, upstream, head, audit_line, timeout, self, ctx)
        proxied.credential = credential if upstream.knows_us else None
        proxied.relayed = plan.info.modifier == PROXY
        return proxied

    def _redirect(self, ctx: RequestContext, redirects: Redirects) -> bool:
        """Redirect the client to the backend itself. Return False if the request has to be forwarded."""
        plan, request, token = ctx.plan, ctx.exchange.request, ctx.token
        if request.has_body:
            return False
        action = AllowedAction(
            ctx.audit_id,
            request.method.decode("ascii"),
            redirects.url(plan.target),
            plan.user,
            token.digest.hex(),
        )
        try:
            location = redirects.location(token.session, action, token.expires_at)
        except ProviderError as error:
            self._records.conclude(ctx, 503)
            self._answers.send_unsigned(ctx, error)
            return True
        if location is None:
            return False
        self._records.conclude(ctx, 307, message=f"redirected to {redirects.origin}")
        self._answers.send_redirect(ctx, location)
        return True

    def _report_failure(self, upstream: Upstream, error: UpstreamLost, ctx: RequestContext) -> None:
        upstream.record_failure(error, ctx.audit_id)
        self._metrics.upstream_errors.inc(upstream.name, error.kind.value)

    # --- `proxied_request.Owner` ---

    def proxied_started(self, proxied: ProxiedRequest[RequestContext], code: int) -> None:
        self._records.record_start(proxied.context, code)

    def proxied_finished(self, proxied: ProxiedRequest[RequestContext], code: int, error: UpstreamLost | None) -> None:
        ctx = proxied.context
        self._tokens_in_use.remove_stream(ctx.token, proxied)
        if self._seated.pop(proxied, _MISSING) is _MISSING:
            self._open.streams.pop(proxied, None)
        upstream = ctx.plan.upstream
        assert upstream is not None
        if error is not None:
            self._report_failure(upstream, error, ctx)
        elif upstream.failures:
            upstream.record_answer()
        self._records.conclude(ctx, code)
        if ctx.holds:
            # A status of the gateway says nothing about what the upstream has done.
            self._settle_objects(ctx, 0 if error is not None else code, sent=proxied.sent, answer=proxied.recorder)

    def _settle_objects(self, ctx: RequestContext, code: int, *, sent: bool, answer: Recorder | None = None) -> None:
        if self._objects is not None:
            body = answer.whole_answer if isinstance(answer, AnswerRecorder) else None
            self._objects.settle(ctx, outcome_of(code, sent=sent), code, body)

    def proxied_failed(self, proxied: ProxiedRequest[RequestContext], code: int, kind: FailureKind) -> None:
        self._answers.send_upstream_failure(proxied.context, code, kind)

    def proxied_streams(self, proxied: ProxiedRequest[RequestContext]) -> bool:
        return self._open.become_stream(proxied)

    def proxied_refused(self, proxied: ProxiedRequest[RequestContext]) -> None:
        self._answers.send_too_many_streams(proxied.context)
