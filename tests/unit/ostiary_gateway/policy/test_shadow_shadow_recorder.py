"""The event of a comparison: the request's own id, a stage of its own, and both decisions."""

from __future__ import annotations

from typing import Any

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.audit.recorded import decode_request
from ostiary_gateway.policy.shadow import ShadowRecorder
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.audit_policy import AuditLevel
from tests.unit.ostiary_gateway.audit.memory_sink import Memory, auditor

INFO = RequestInfo(
    "get",
    "GET",
    "/api/v1/namespaces/team/pods/web",
    is_resource=True,
    api_version="v1",
    namespace="team",
    resource="pods",
    name="web",
    upstream="prod",
)
ALICE = UserInfo("alice", groups=("dev",))


def record(level: AuditLevel = AuditLevel.METADATA, *, full: bool = False, **more: Any) -> Memory:
    sink, clock = Memory(), FakeClock()
    sink.full = full
    recorder = ShadowRecorder(auditor(sink, clock, level, blocking=full), clock=clock, tells_upstream=True)
    at = clock.monotonic()
    clock.advance(2)
    fields: dict[str, Any] = {"actor": None, "at": at, **more}
    reason = fields.pop("reason", "no rule")
    decision = Decision(Verdict.ALLOW, "a rule")
    recorder.record("id-1", Attributes(ALICE, INFO), decision, "only_gateway_allows", reason, **fields)
    return sink


def test_it_has_both_decisions_and_the_id_of_the_request() -> None:
    (event,) = record().events
    assert (event["auditID"], event["stage"], event["level"]) == ("id-1", "ShadowReview", "Metadata")
    assert event["user"] == {"username": "alice", "groups": ["dev", "system:authenticated"]}
    assert event["objectRef"] == {"resource": "pods", "namespace": "team", "name": "web", "apiVersion": "v1"}
    assert event["annotations"] == {
        "authorization.k8s.io/decision": "allow",
        "authorization.k8s.io/reason": "a rule",
        "ostiary.dev/shadow": "only_gateway_allows",
        "ostiary.dev/shadow-reason": "no rule",
        "audit.ostiary.dev/upstream": "prod",
    }
    assert event["requestReceivedTimestamp"] < event["stageTimestamp"]


def test_who_acts_for_somebody_is_told_with_whom_they_act_for() -> None:
    (event,) = record(actor=UserInfo("root")).events
    assert (event["user"]["username"], event["impersonatedUser"]["username"]) == ("root", "alice")


def test_what_the_audit_policy_does_not_want_is_not_recorded() -> None:
    assert record(AuditLevel.NONE).lines == []


def test_a_sink_that_is_full_does_no_harm() -> None:
    assert record(full=True).lines == []


def test_a_clusters_reason_is_bounded_and_tokens_are_taken_out_of_it() -> None:
    token = "ost_" + "A" * 60
    (line,) = record(reason=token + "x" * 10_000).lines
    assert len(line) < 3000
    assert "AAAA" not in line


def test_a_path_is_read_back_as_it_was_decided_on() -> None:
    path = "/logs/a?token=b/%41/é/*"
    sink, clock = Memory(), FakeClock()
    recorder = ShadowRecorder(auditor(sink, clock), clock=clock, tells_upstream=False)
    asked = Attributes(ALICE, RequestInfo("get", "GET", path))
    recorder.record("id-1", asked, Decision(Verdict.ALLOW), "agree", "", actor=None, at=clock.monotonic())
    (line,) = sink.lines
    request = decode_request(line.encode())
    assert request is not None
    assert request.attributes.request.path == path


def test_readers_of_requests_know_it_for_what_it_is() -> None:
    """It can be read back, and replays leave it out by its stage."""
    (line,) = record().lines
    request = decode_request(line.encode())
    assert request is not None
    assert request.attributes.request == INFO or request.attributes.upstream == "prod"
