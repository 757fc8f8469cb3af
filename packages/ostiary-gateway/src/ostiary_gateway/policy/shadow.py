"""Shadow mode: query the cluster for its decision on requests that the gateway has decided, and record both.

    queue  ->  SubjectAccessReview at the upstream, with the gateway's own credential  ->  metric, audit event

Runs in the background of a worker. Requests are not affected by the cluster's decision, nor by a failure to get it.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum

from ostiary.core.clock import Clock
from ostiary.errors import AuditUnavailable, ProviderError
from ostiary.model import Attributes, Decision, UserInfo
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.authorization.implied_groups import with_implied_groups
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.observability.repeated_log import RepeatedLog
from ostiary_gateway.proxy.shadow_sampling import ShadowQuestion
from ostiary_gateway.proxy.upstream_client import UpstreamClient
from ostiary_gateway.sessions.authentication_context import without_context
from ostiary_gateway.wire import audit as wire
from ostiary_gateway.wire import audit_policy
from ostiary_gateway.wire.audit_policy import AuditLevel
from ostiary_gateway.wire.authorization import MAX_BYTES, V1, ReviewError, decode_status, encode_review

# The cluster's response arrives after the request is completed, and often after its last audit event, so it cannot be
# an annotation there. It gets an event of its own, with the id of the request and a stage that cannot be confused
# with its end.

log = logging.getLogger("ostiary.gateway")

# The cluster controls this text.
_LONGEST_REASON = 1024


class ShadowRecorder:
    """Record the cluster's decisions beside those of the gateway, as audit events."""

    def __init__(self, auditor: Auditor, *, clock: Clock, tells_upstream: bool) -> None:
        self._auditor = auditor
        self._clock = clock
        self._tells_upstream = tells_upstream

    def record(
        self,
        audit_id: str,
        attributes: Attributes,
        decision: Decision,
        outcome: str,
        cluster_reason: str,
        *,
        actor: UserInfo | None,
        at: float,
    ) -> None:
        """Record the cluster's decision. *at* is the monotonic time of the gateway's decision. Never raises."""
        request = attributes.request
        user = with_implied_groups(attributes.user)
        sender = user if actor is None else with_implied_groups(actor)
        if self._auditor.policy.scope(request, sender).level is AuditLevel.NONE:
            return
        annotations = {
            audit_policy.DECISION: "allow" if decision.allowed else "forbid",
            audit_policy.REASON: decision.reason,
            audit_policy.SHADOW: outcome,
            audit_policy.SHADOW_REASON: cluster_reason[:_LONGEST_REASON],
        }
        if self._tells_upstream:
            annotations[audit_policy.UPSTREAM] = request.upstream
        timestamps = self._auditor.timestamps
        received, now = timestamps.stamp(at), timestamps.stamp(self._clock.monotonic())
        impersonated = None if sender == user else user
        try:
            self._auditor.accept(
                wire.shadow_line(
                    audit_id, request, sender, impersonated, received=received, stamped=now, annotations=annotations
                )
            )
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})


TARGET = f"/apis/{V1}/subjectaccessreviews"
# Requests do not wait for reviews, but the upstream has other work.
MOST_WAITING, MOST_AT_ONCE = 256, 4
ANSWER_SECONDS = 5.0
LOG_SECONDS = 60.0
_HEADERS = (("Content-Type", "application/json"), ("Accept", "application/json"))


class ShadowOutcome(Enum):
    """The outcome of a comparison, as in metrics and audit events."""

    AGREE = "agree"
    GATEWAY_ALLOWS = "only_gateway_allows"
    CLUSTER_ALLOWS = "only_cluster_allows"
    UNKNOWN = "unknown"


class ShadowComparison:
    """Compare the decisions of one upstream, in one event loop. A slow cluster does not delay reviews at others."""

    def __init__(
        self, recorder: ShadowRecorder, metrics: Metrics, clock: Clock, *, seconds: float = ANSWER_SECONDS
    ) -> None:
        self._recorder = recorder
        self._counter = metrics.shadow_reviews
        # A cluster may fail at reviews and serve all else well, so failures do not affect readiness.
        self._requests = UpstreamClient({}, seconds=seconds, reports_failures=False)
        self._waiting: asyncio.Queue[ShadowQuestion] = asyncio.Queue(MOST_WAITING)
        self._log = RepeatedLog(log, clock, interval=LOG_SECONDS)

    def enqueue(self, question: ShadowQuestion) -> bool:
        """Queue a comparison. Returns False if the queue is full."""
        try:
            self._waiting.put_nowait(question)
        except asyncio.QueueFull:
            return False
        return True

    async def run(self) -> None:
        """Compare until cancelled. Queued requests are then dropped."""
        async with asyncio.TaskGroup() as group:
            for _ in range(MOST_AT_ONCE):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            question = await self._waiting.get()
            outcome, reason = await self._compare(question)
            self._counter.inc(question.upstream.name, outcome.value)
            self._recorder.record(
                question.audit_id,
                Attributes(question.user, question.info),
                question.ruling,
                outcome.value,
                reason,
                actor=question.actor,
                at=question.at,
            )

    async def _compare(self, question: ShadowQuestion) -> tuple[ShadowOutcome, str]:
        try:
            theirs = await self._ask(question)
        except ProviderError as error:
            cause = error.cause or error.summary
            fields = {"upstream": question.upstream.name, "cause": cause}
            self._log.write(logging.WARNING, "a cluster could not be asked for its decision", fields)
            return ShadowOutcome.UNKNOWN, cause
        except Exception as error:
            # A bug here must not stop the worker.
            log.exception("a decision could not be compared", extra={"request_id": question.audit_id})
            return ShadowOutcome.UNKNOWN, type(error).__name__
        if theirs.allowed == question.ruling.allowed:
            return ShadowOutcome.AGREE, theirs.reason
        outcome = ShadowOutcome.CLUSTER_ALLOWS if theirs.allowed else ShadowOutcome.GATEWAY_ALLOWS
        return outcome, theirs.reason

    async def _ask(self, question: ShadowQuestion) -> Decision:
        """Return the cluster's decision on everything that the request needs.

        It is the first denial, or that all is allowed. The review is about the user that the gateway forwards to the
        upstream (`proxy.identity_headers`). Raises `ProviderError` if there is no clear response.
        """
        user = without_context(with_implied_groups(question.user))
        for info in question.required:
            answer = await self._requests.ask_place(
                question.upstream,
                TARGET,
                method="POST",
                headers=_HEADERS,
                body=encode_review(Attributes(user, info)),
                largest=MAX_BYTES,
            )
            if answer.status not in (200, 201):
                raise _no_answer(answer.status)
            try:
                decision = decode_status(answer.body)
            except ReviewError as error:
                raise ProviderError(
                    "a cluster could not be asked", cause=f"its answer cannot be used: {error}"
                ) from None
            if not decision.allowed:
                break
        return decision


def _no_answer(status: int) -> ProviderError:
    cause = f"it answered with status {status}"
    if status == 403:
        cause = "it does not let the gateway create subjectaccessreviews (status 403)"
    elif status == 401:
        cause = "it rejects the gateway's own credential (status 401)"
    return ProviderError("a cluster could not be asked", cause=cause)
