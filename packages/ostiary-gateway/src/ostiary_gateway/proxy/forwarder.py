"""Forwards an allowed request to its upstream, and concludes it when the exchange is over.

Called by the engine as its last step. `Proxied` moves the bytes and calls back here: when a long answer begins, when
the answer turns out to be a stream, and when the exchange ends.
"""

from __future__ import annotations

from ostiary.errors import ProviderError
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.authentication.token_cache import TokensInUse
from ostiary_gateway.http1.client_connection import UpstreamConnection
from ostiary_gateway.http1.request_head import framing_lines
from ostiary_gateway.http1.response import FailureKind, Receiver, UpstreamLost
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.active_requests import OpenExchanges
from ostiary_gateway.proxy.context import Passage
from ostiary_gateway.proxy.proxied_request import Proxied
from ostiary_gateway.proxy.quota_gate import ObjectAdmission, answer_recorder, outcome_of
from ostiary_gateway.proxy.recorder import AnswerRecorder, Recorder
from ostiary_gateway.proxy.redirects import Redirects
from ostiary_gateway.proxy.request_log import RequestRecords
from ostiary_gateway.proxy.responses import Answers
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.wire.action_token import AllowedAction
from ostiary_gateway.wire.request_info import PROXY

_MISSING = object()


class Forwarder:
    """For the requests of one engine."""

    def __init__(
        self,
        tokens_in_use: TokensInUse,
        open_exchanges: OpenExchanges,
        auditor: Auditor,
        metrics: Metrics,
        answers: Answers,
        records: RequestRecords,
        objects: ObjectAdmission | None = None,
    ) -> None:
        self._tokens_in_use = tokens_in_use
        self._open = open_exchanges
        self._seated = open_exchanges.seated
        self._auditor = auditor
        self._metrics = metrics
        self._answers = answers
        self._records = records
        self._objects = objects

    def forward(self, passage: Passage) -> None:
        plan, exchange = passage.plan, passage.exchange
        upstream = plan.upstream
        assert upstream is not None
        if plan.redirected and upstream.redirects is not None and self._redirect(passage, upstream.redirects):
            return
        assertion = b""
        try:
            credential = upstream.credential()
            if upstream.assertions is not None and not plan.public:
                assertion = upstream.assertions.line(passage.token.session, plan.user)
        except ProviderError as error:
            self._records.conclude(passage, 503)
            self._settle_objects(passage, 0, sent=False)
            self._answers.send_unsigned(passage, error)
            return
        except OSError as error:
            self._report_failure(upstream, upstream.credential_failure(error), passage)
            self._records.conclude(passage, 503)
            self._settle_objects(passage, 0, sent=False)
            self._answers.send_upstream_failure(passage, 503, FailureKind.CREDENTIAL)
            return
        # For the upstream and for the client alike: what each of them did is found by it.
        audit_line = b"Audit-Id: " + passage.audit_id.encode()
        head = b"".join(
            (
                plan.head,
                credential,
                assertion,
                passage.scanned.lines,
                exchange.own_lines,
                exchange.connection.forwarded_lines,
                audit_line,
                b"\r\n\r\n" if exchange.request.bare else framing_lines(exchange.request),
            )
        )
        audit = plan.audit
        if audit is not None and audit.wants_request_body:
            passage.recorder = Recorder(self._auditor.largest_body, request=True, response=audit.wants_response_body)
        proxied = self._proxied(passage, upstream, head, audit_line, credential)
        self._tokens_in_use.add_stream(passage.token, proxied)
        if plan.stream:
            proxied.tells_when_started = True
            self._open.streams[proxied] = None
        else:
            self._seated[proxied] = None
        proxied.recorder = (passage.holds and answer_recorder(passage)) or passage.recorder
        try:
            proxied.start()
        except Exception:
            proxied.give_up()
            raise

    def take_over(
        self,
        passage: Passage,
        head: bytes,
        audit_line: bytes,
        credential: bytes,
        connection: UpstreamConnection,
        receiver: Receiver,
    ) -> Proxied[Passage]:
        """Take a request from *receiver*, which has sent *head* on *connection* and does nothing else about it."""
        upstream = passage.plan.upstream
        assert upstream is not None
        proxied = self._proxied(passage, upstream, head, audit_line, credential)
        self._tokens_in_use.add_stream(passage.token, proxied)
        self._seated[proxied] = None
        proxied.take_over(connection, receiver)
        return proxied

    def _proxied(
        self, passage: Passage, upstream: Upstream, head: bytes, audit_line: bytes, credential: bytes
    ) -> Proxied[Passage]:
        plan = passage.plan
        timeout = float("inf") if plan.long_running else upstream.response_timeout
        proxied = Proxied(passage.exchange, upstream, head, audit_line, timeout, self, passage)
        proxied.credential = credential if upstream.knows_us else None
        proxied.relayed = plan.info.modifier == PROXY
        return proxied

    def _redirect(self, passage: Passage, redirects: Redirects) -> bool:
        """Send the client to the backend itself; False if the request has to be forwarded."""
        plan, request, token = passage.plan, passage.exchange.request, passage.token
        if request.has_body:
            return False
        action = AllowedAction(
            passage.audit_id,
            request.method.decode("ascii"),
            redirects.url(plan.target),
            plan.user,
            token.digest.hex(),
        )
        try:
            location = redirects.location(token.session, action, token.expires_at)
        except ProviderError as error:
            self._records.conclude(passage, 503)
            self._answers.send_unsigned(passage, error)
            return True
        if location is None:
            return False
        self._records.conclude(passage, 307, message=f"redirected to {redirects.origin}")
        self._answers.send_redirect(passage, location)
        return True

    def _report_failure(self, upstream: Upstream, error: UpstreamLost, passage: Passage) -> None:
        upstream.record_failure(error, passage.audit_id)
        self._metrics.upstream_errors.inc(upstream.name, error.kind.value)

    # --- called by `Proxied` ---

    def proxied_started(self, proxied: Proxied[Passage], code: int) -> None:
        self._records.record_start(proxied.context, code)

    def proxied_finished(self, proxied: Proxied[Passage], code: int, error: UpstreamLost | None) -> None:
        passage = proxied.context
        self._tokens_in_use.remove_stream(passage.token, proxied)
        if self._seated.pop(proxied, _MISSING) is _MISSING:
            self._open.streams.pop(proxied, None)
        upstream = passage.plan.upstream
        assert upstream is not None
        if error is not None:
            self._report_failure(upstream, error, passage)
        elif upstream.failures:
            upstream.record_answer()
        self._records.conclude(passage, code)
        if passage.holds:
            # A status of our own says nothing about what the upstream has done.
            self._settle_objects(passage, 0 if error is not None else code, sent=proxied.sent, answer=proxied.recorder)

    def _settle_objects(self, passage: Passage, code: int, *, sent: bool, answer: Recorder | None = None) -> None:
        if self._objects is not None:
            body = answer.whole_answer if isinstance(answer, AnswerRecorder) else None
            self._objects.settle(passage, outcome_of(code, sent=sent), code, body)

    def proxied_failed(self, proxied: Proxied[Passage], code: int, kind: FailureKind) -> None:
        self._answers.send_upstream_failure(proxied.context, code, kind)

    def proxied_streams(self, proxied: Proxied[Passage]) -> bool:
        return self._open.become_stream(proxied)

    def proxied_refused(self, proxied: Proxied[Passage]) -> None:
        self._answers.send_too_many_streams(proxied.context)
