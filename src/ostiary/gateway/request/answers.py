"""Answers of our own: every refusal and every failure that a client gets from us and not from the upstream.

Called by the engine. Each answer is counted and recorded as it is sent. What it says is Kubernetes' own wording
(`ostiary.wire.status`); why is for the log and the audit record, which its ``Audit-Id`` leads to.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from ostiary.core.clock import Clock
from ostiary.errors import AuditUnavailable, ProviderError, TooManyRequests
from ostiary.gateway.audit.auditor import Auditor, Prepared
from ostiary.gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary.gateway.audit.source_ips import Network, source_ips
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.doors.self_reviews import ReviewAnswer, send_review
from ostiary.gateway.http1.accept import prefers_html
from ostiary.gateway.http1.client import FailureKind
from ostiary.gateway.http1.request_head import Refusal, RequestHead
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.request.stages import Passage, Plan
from ostiary.interfaces.admission import Admission
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary.wire import status
from ostiary.wire.audit import authentication_failed

log = logging.getLogger("ostiary.gateway")

_JSON = (b"Content-Type", b"application/json")
_NOSNIFF = (b"X-Content-Type-Options", b"nosniff")
_NO_CACHE = (b"Cache-Control", b"no-cache, private")

Headers = list[tuple[bytes, bytes]]


def _is_browser_at_the_root(request: RequestHead) -> bool:
    """Whether a person has opened ``/`` in a browser. Programs, which name no HTML, get their 401 as everywhere."""
    if request.method != b"GET" or request.target.partition(b"?")[0] != b"/" or request.upgrade:
        return False
    headers = {name.lower(): value for name, value in request.headers}
    if headers.get(b"sec-fetch-dest", b"document") != b"document":
        return False
    return prefers_html(headers.get(b"accept", b"").decode("latin-1"))


class Answers:
    """Sends them for one engine."""

    def __init__(
        self,
        authorizer: Authorizer,
        auditor: Auditor,
        metrics: Metrics,
        clock: Clock,
        *,
        trusted_proxies: Sequence[Network] = (),
        realm: str = "ostiary",
        ended: EndedRequests | None = None,
    ) -> None:
        self._authorizer = authorizer
        self._auditor = auditor
        self._metrics = metrics
        self._monotonic = clock.monotonic
        self._now = clock.now
        self._ended = ended
        self._trusted_proxies = trusted_proxies
        self._absent = status.www_authenticate(False, realm).encode()
        self._no_good = status.www_authenticate(True, realm).encode()

    def refused(self, passage: Passage, plan: Plan) -> None:
        """No. A hidden refusal is answered as a missing object would be; nothing else tells the two apart."""
        decision, attributes = plan.ruling.decision, Attributes(plan.user, plan.info)
        self._authorizer.record(attributes, decision, passage.audit_id)
        code, body = status.not_found(plan.info) if decision.hidden else status.forbidden(attributes)
        self.send(passage, code, body, plan=plan)

    def unauthorized(self, passage: Passage, *, attempted: bool) -> None:
        """The same answer for a token that is unknown, expired or revoked. Only Bearer is ever asked for here."""
        self._metrics.authentications.inc("refused" if attempted else "absent")
        if not attempted and _is_browser_at_the_root(passage.exchange.request):
            # A person who typed the gateway's address is led to where people sign in.
            self.send(
                passage, 303, b"", more=[(b"Location", b"/auth"), (b"Vary", b"Accept")], reason="redirected to /auth"
            )
            return
        challenge = self._no_good if attempted else self._absent
        reason = authentication_failed(("bearer",) if attempted else ())
        code, body = status.unauthorized()
        self.send(passage, code, body, more=[(b"WWW-Authenticate", challenge)], reason=reason)

    def bad_request(self, passage: Passage, message: str) -> None:
        self.send(passage, *status.bad_request(message), reason=message)

    def too_many(self, passage: Passage, error: TooManyRequests, limit: str, plan: Plan | None = None) -> None:
        if passage.exchange.gone:
            return
        self._metrics.rate_limited.inc(limit)
        seconds = max(1, math.ceil(error.retry_after))
        code, body = status.too_many(seconds)
        retry = [(b"Retry-After", str(seconds).encode())]
        self.send(passage, code, body, plan=plan, more=retry, reason=f"over the limit: {limit}")

    def not_admitted(self, passage: Passage, plan: Plan, admission: Admission) -> None:
        if admission.retry_after is None:
            code, body = status.forbidden(Attributes(plan.user, plan.info), admission.reason)
            self.send(passage, code, body, plan=plan)
            return
        error = TooManyRequests(admission.reason, retry_after=admission.retry_after)
        self.too_many(passage, error, "admission", plan)

    def could_not_ask(self, passage: Passage, user: UserInfo, info: RequestInfo, error: ProviderError) -> None:
        extra = {"request_id": passage.audit_id, "cause": error.cause or error.summary}
        log.error("a request could not be decided", extra=extra)
        self._metrics.provider_errors.inc("authorization", "")
        prepared = self._auditor.prepare(info, user, request_uri=passage.exchange.request.target.decode("latin-1"))
        reason = f"could not be decided: {error.cause or error.summary}"
        self.send(passage, *status.internal(), audit=prepared, reason=reason)

    def store_unavailable(self, passage: Passage, error: ProviderError) -> None:
        extra = {"request_id": passage.audit_id, "cause": error.cause or error.summary}
        log.error("a token could not be looked up", extra=extra)
        self._metrics.provider_errors.inc("token_store", "")
        self.send(passage, *status.upstream_failed(503), reason="the token could not be looked up")

    def upstream_failed(self, passage: Passage, code: int, kind: FailureKind = FailureKind.LOST) -> None:
        """502, 503 or 504, for a request that is counted and recorded already."""
        rejected = kind is FailureKind.CREDENTIAL
        answer = status.gateway_unauthenticated() if rejected else status.upstream_failed(code)
        reason = "the upstream rejects the gateway's own credential" if rejected else "the upstream could not be asked"
        # Not in the log each time: an outage is told there once in a while, and fails every request.
        self._record_end(passage, code, reason, passage.plan)
        self._respond(passage, *answer, [])

    def stream_refused(self, passage: Passage) -> None:
        """The answer would be a stream, and the user has too many; the request is counted and recorded already."""
        self._metrics.rate_limited.inc("streams")
        self._remember(passage, 429, "over the limit: streams", passage.plan)
        self._respond(passage, *status.too_many(1), [(b"Retry-After", b"1")])

    def internal(self, passage: Passage, plan: Plan | None = None) -> None:
        """We failed, or the record of this request cannot be kept."""
        self.send(
            passage, *status.internal(), plan=plan, reason="the gateway failed, or could not store the audit event"
        )

    def no_route(self, passage: Passage) -> None:
        """Nobody serves this host and path."""
        self.send(passage, *status.no_route(), reason="no upstream serves this host and path")

    def reviewed(self, passage: Passage, answer: ReviewAnswer) -> None:
        """The answer to a review about the sender's own token."""
        now = self._monotonic()
        self._metrics.requests.count(passage.plan.info.verb, answer.code, "", now - passage.received_at)
        if passage.plan.audit is not None:
            self.audited(passage.plan.audit, passage, answer.code, now)
        send_review(passage, answer)

    def send(
        self,
        passage: Passage,
        code: int,
        body: bytes,
        *,
        plan: Plan | None = None,
        audit: Prepared | None = None,
        more: Headers | None = None,
        reason: str = "",
    ) -> None:
        """Send it, count it and record it. *reason* is for the operator."""
        if passage.exchange.gone:
            return
        now = self._monotonic()
        self._metrics.requests.count(plan.info.verb if plan else "", code, "", now - passage.received_at)
        audit = audit or (plan.audit if plan is not None else None)
        if audit is not None:
            self.audited(audit, passage, code, now)
        elif plan is None:
            self._audit_unidentified(passage, code, reason)
        if code >= 400:
            self._remember(passage, code, reason, plan)
        self._respond(passage, code, body, more or [])

    def own_api_answered(self, passage: Passage, code: int) -> None:
        """An API of our own has answered; the request is counted and recorded already."""
        if code >= 400:
            self._remember(passage, code, "refused by the gateway's own API", passage.plan)

    def open_path_answered(self, passage: Passage, code: int) -> None:
        """A path that asks for no token of ours has answered."""
        if code >= 400:
            reason = f"the gateway answered {code} at a path that needs no token"
            self._audit_unidentified(passage, code, reason)
            self._remember(passage, code, reason, None)

    def _remember(self, passage: Passage, code: int, reason: str, plan: Plan | None) -> None:
        """The id that the client is told leads somewhere: to this line of the log, and to ``ostiary explain``."""
        user = plan.user.username if plan is not None else ""
        extra = {"request_id": passage.audit_id, "status": code, "user": user, "cause": reason}
        log.info("a request was refused" if code < 500 else "a request failed", extra=extra)
        self._record_end(passage, code, reason, plan)

    def record_unreadable(self, audit_id: str, address: str, request: RequestHead | None, refusal: Refusal) -> None:
        """The connection itself has refused a request, of which there may be no more than the first bytes."""
        extra = {"request_id": audit_id, "status": refusal.status, "user": "", "cause": refusal.message}
        log.info("a request was refused", extra=extra)
        if self._ended is not None:
            method, target = (b"", b"") if request is None else (request.method, request.target)
            path = target.partition(b"?")[0].decode("latin-1")
            told = (refusal.status, refusal.message, method.decode("latin-1"), path, address)
            self._ended.record(EndedRequest(audit_id, self._now(), *told))

    def _record_end(self, passage: Passage, code: int, reason: str, plan: Plan | None) -> None:
        user = plan.user.username if plan is not None else ""
        if self._ended is not None and (plan is None or plan.ruling.decision.allowed):
            request = passage.exchange.request
            path = request.target.partition(b"?")[0].decode("latin-1")
            address = passage.exchange.connection.remote_address
            method = request.method.decode("latin-1")
            outcome = EndedRequest(passage.audit_id, self._now(), code, reason, method, path, address, user)
            self._ended.record(outcome)

    def _respond(self, passage: Passage, code: int, body: bytes, more: Headers) -> None:
        headers = [(b"Audit-Id", passage.audit_id.encode()), _NO_CACHE, _JSON, *more]
        if code != 404:
            # Kubernetes does not set it on what is missing, so it would tell what is only hidden.
            headers.append(_NOSNIFF)
        passage.exchange.respond(code, headers, body)

    def _audit_unidentified(self, passage: Passage, code: int, message: str) -> None:
        exchange = passage.exchange
        method = exchange.request.method.decode("ascii")
        path = exchange.request.target.partition(b"?")[0].decode("latin-1")
        info = RequestInfo(method.lower(), method, path)
        prepared = self._auditor.prepare(info, None, request_uri=exchange.request.target.decode("latin-1"))
        if prepared is None:
            return
        at = self._monotonic()
        try:
            prepared.complete_with(
                passage.audit_id,
                self.origin(passage),
                code,
                received_at=passage.received_at,
                at=at,
                message=message,
            )
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})

    def origin(self, passage: Passage) -> str:
        scanned = passage.scanned
        connection = passage.exchange.connection
        address, origin = scanned.origin
        if address == connection.remote_address:
            return origin
        if scanned.forwarded_for and self._trusted_proxies:
            lines = [line.decode("latin-1") for line in scanned.forwarded_for]
            ips = source_ips(connection.remote_address, forwarded_for=lines, trusted=self._trusted_proxies)
        else:
            ips = (connection.remote_address,)
        origin = self._auditor.origin(ips, scanned.user_agent.decode("latin-1"))
        scanned.origin = (connection.remote_address, origin)
        return origin

    def panicked(self, passage: Passage) -> None:
        """We failed in the midst of it: if it was to be recorded, that is."""
        audit = passage.plan.audit
        if audit is None:
            return
        try:
            audit.panicked(
                passage.audit_id, self.origin(passage), received_at=passage.received_at, at=self._monotonic()
            )
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})

    def audited(self, audit: Prepared, passage: Passage, code: int, now: float) -> None:
        audit_id, origin, received_at = passage.audit_id, self.origin(passage), passage.received_at
        recorder = passage.recorder
        try:
            if recorder is None:
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
            # The answer is on its way. The next request finds out before anything is done.
            log.error("an audit event could not be stored", extra={"cause": error.cause})
