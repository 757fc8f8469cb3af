"""What the webhook refuses is recorded under the id that leads to the reason."""

from __future__ import annotations

import pytest

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.audit.denied_reviews import RefusedReviewRecorder
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.audit.memory_sink import Memory, auditor

DENIED = Decision(Verdict.NO_OPINION, "no rule")
PODS = RequestInfo("get", "", "", is_resource=True, resource="pods", namespace="dev")


def test_a_refusal_is_recorded_with_its_id_and_its_reason(clock: FakeClock) -> None:
    sink = Memory()
    recorder = RefusedReviewRecorder(auditor(sink, clock), clock=clock)
    recorder.record(Attributes(UserInfo("ann"), PODS), DENIED, "0a1b")
    (event,) = sink.events
    assert (event["auditID"], event["responseStatus"]["code"]) == ("0a1b", 403)
    assert event["user"]["username"] == "ann"
    assert event["requestURI"] == "/webhooks/subject-access-review"
    assert "no rule" in event["annotations"].values()


def test_a_refusal_that_cannot_be_stored_is_logged(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    sink = Memory()
    sink.full = True
    RefusedReviewRecorder(auditor(sink, clock), clock=clock).record(Attributes(UserInfo("ann"), PODS), DENIED, "0a1b")
    assert "an audit event could not be stored" in caplog.messages
