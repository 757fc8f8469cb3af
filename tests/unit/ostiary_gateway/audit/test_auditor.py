"""One event per stage of a request: made by the policy, cheap, complete, and without secrets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.scopes import narrow, parse_scope
from ostiary.errors import AuditUnavailable
from ostiary.model import Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.audit.auditor import Auditor, Prepared
from ostiary_gateway.audit.file_sink import FileAudit
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.audit_policy import AuditLevel, AuditRule, Policy, Stage
from tests.unit.ostiary_gateway.audit.memory_sink import Memory, auditor

JANE = UserInfo("jane", groups=("dev",))
GET = RequestInfo("get", "GET", "/api/v1/namespaces/dev/pods/web", is_resource=True, resource="pods", namespace="dev")
SECRET = RequestInfo("create", "POST", "/api/v1/namespaces/dev/secrets", is_resource=True, resource="secrets")
ALLOW = Decision(Verdict.ALLOW, "RBAC: allowed")


@pytest.fixture
def sink() -> Memory:
    return Memory()


def prepared(audit: Auditor, request: RequestInfo = GET, user: UserInfo | None = JANE, **options: Any) -> Prepared:
    options.setdefault("request_uri", request.path)
    options.setdefault("decision", ALLOW)
    found = audit.prepare(request, user, **options)
    assert found is not None
    return found


# --- stages ---


def test_a_request_has_an_event_when_it_comes_and_one_when_it_is_answered(sink: Memory, clock: FakeClock) -> None:
    """2.7, S70."""
    audit = auditor(sink, clock)
    request, where = prepared(audit), audit.origin(("192.0.2.1",), "kubectl/v1.34")
    came = clock.monotonic()
    request.record_received("id-1", where, came)
    clock.advance(0.25)
    request.record_started("id-1", where, 200, received_at=came, at=clock.monotonic())
    request.complete("id-1", where, 200, received_at=came, at=clock.monotonic())
    first, last = sink.events
    assert (first["stage"], last["stage"]) == ("RequestReceived", "ResponseComplete")
    assert "responseStatus" not in first
    assert last["responseStatus"]["code"] == 200
    assert last["requestReceivedTimestamp"] == first["stageTimestamp"] == "2026-01-01T00:00:00.000000Z"
    assert last["stageTimestamp"] == "2026-01-01T00:00:00.250000Z"
    assert last["auditID"] == first["auditID"] == "id-1"
    assert last["sourceIPs"] == ["192.0.2.1"]
    assert last["userAgent"] == "kubectl/v1.34"
    assert audit.events == 2


def test_only_a_long_answer_has_an_event_when_it_begins(sink: Memory, clock: FakeClock) -> None:
    """2.7."""
    audit = auditor(sink, clock, AuditLevel.METADATA, Stage.RECEIVED)
    prepared(audit, long_running=True).record_started("i", "", 101, received_at=1000.0, at=1000.0)
    prepared(audit).record_started("i", "", 200, received_at=1000.0, at=1000.0)
    assert [event["stage"] for event in sink.events] == ["ResponseStarted"]


def test_stages_that_the_policy_omits_make_no_event(sink: Memory, clock: FakeClock) -> None:
    """2.7."""
    audit = auditor(sink, clock, AuditLevel.METADATA, *Stage)
    request = prepared(audit, long_running=True)
    request.record_received("i", "", 1000.0)
    request.record_started("i", "", 200, received_at=1000.0, at=1000.0)
    request.complete("i", "", 200, received_at=1000.0, at=1000.0)
    request.complete_with("i", "", 200, received_at=1000.0, at=1000.0, message="x")
    request.record_panic("i", "", received_at=1000.0, at=1000.0)
    assert sink.lines == []
    assert not request.wants_received


def test_our_own_failure_is_the_stage_panic(sink: Memory, clock: FakeClock) -> None:
    """2.7."""
    prepared(auditor(sink, clock)).record_panic("i", "", received_at=1000.0, at=1000.0)
    (event,) = sink.events
    assert event["stage"] == "Panic"
    assert event["responseStatus"]["code"] == 500


def test_a_request_that_the_policy_leaves_out_costs_nothing_later(sink: Memory, clock: FakeClock) -> None:
    """2.7."""
    assert auditor(sink, clock, AuditLevel.NONE).prepare(GET, JANE, request_uri="/") is None


# --- what an event says ---


@pytest.mark.parametrize(("verdict", "word"), [(Verdict.ALLOW, "allow"), (Verdict.DENY, "forbid")])
def test_the_decision_and_its_reason_are_annotations(
    sink: Memory, clock: FakeClock, verdict: Verdict, word: str
) -> None:
    """2.7."""
    request = prepared(auditor(sink, clock), decision=Decision(verdict, "why"))
    request.complete("i", "", 200, received_at=1000.0, at=1000.0)
    assert sink.events[0]["annotations"] == {
        "authorization.k8s.io/decision": word,
        "authorization.k8s.io/reason": "why",
    }


@pytest.mark.parametrize("tells", [True, False])
def test_where_there_are_several_upstreams_an_event_names_its_own(sink: Memory, clock: FakeClock, tells: bool) -> None:
    request = prepared(auditor(sink, clock, tells_upstream=tells), replace(GET, upstream="dev"))
    request.complete("i", "", 200, received_at=1000.0, at=1000.0)
    assert sink.events[0]["annotations"].get("audit.ostiary.dev/upstream") == ("dev" if tells else None)


def test_an_event_tells_the_groups_that_everybody_is_in(sink: Memory, clock: FakeClock) -> None:
    """And so rules about system:authenticated apply, which most audit policies have."""
    rule = AuditRule(AuditLevel.METADATA, groups=frozenset({"system:authenticated"}))
    audit = Auditor(Policy((rule,)), [sink], clock=clock)
    prepared(audit, user=UserInfo("jane")).complete("i", "", 200, received_at=1000.0, at=1000.0)
    assert sink.events[-1]["user"]["groups"] == ["system:authenticated"]


def test_a_failed_authentication_is_recorded(sink: Memory, clock: FakeClock) -> None:
    """2.7, S38."""
    request = prepared(auditor(sink, clock), user=None, decision=None)
    message = "Authentication failed, attempted: bearer"
    request.complete_with("i", "", 401, received_at=1000.0, at=1000.0, reason="Unauthorized", message=message)
    (event,) = sink.events
    assert event["user"] == {}
    assert event["responseStatus"] == {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "Unauthorized",
        "code": 401,
    }


def test_a_request_that_admission_refuses_after_it_was_received_is_recorded_to_its_end(
    sink: Memory, clock: FakeClock
) -> None:
    """S56: audit comes before admission, so what admission refuses has left its trace."""
    request = prepared(auditor(sink, clock))
    request.record_received("i", "", 1000.0)
    request.complete_with("i", "", 403, received_at=1000.0, at=1000.0, annotations={"ostiary.dev/admission": "quota"})
    received, complete = sink.events
    assert received["stage"] == "RequestReceived"
    assert complete["annotations"]["ostiary.dev/admission"] == "quota"
    assert complete["annotations"]["authorization.k8s.io/decision"] == "allow"


def test_the_impersonated_user_stands_beside_the_one_who_asks(sink: Memory, clock: FakeClock) -> None:
    """2.7."""
    request = prepared(
        auditor(sink, clock), impersonated=UserInfo("joe"), impersonation_constraint="impersonate:user-info"
    )
    request.complete("i", "", 200, received_at=1000.0, at=1000.0)
    (event,) = sink.events
    assert event["user"]["username"] == "jane"
    assert event["impersonatedUser"]["username"] == "joe"
    assert event["authenticationMetadata"] == {"impersonationConstraint": "impersonate:user-info"}


def test_the_address_of_a_request_loses_its_secrets(sink: Memory, clock: FakeClock) -> None:
    """2.7, L6."""
    request = prepared(auditor(sink, clock), request_uri="/auth/provider?code=canary-1&state=canary-2")
    request.complete("i", "", 200, received_at=1000.0, at=1000.0)
    assert "canary" not in sink.lines[0]


# --- bodies ---


@pytest.mark.parametrize(
    ("level", "wants"),
    [
        (AuditLevel.METADATA, (False, False)),
        (AuditLevel.REQUEST, (True, False)),
        (AuditLevel.REQUEST_RESPONSE, (True, True)),
    ],
)
def test_each_level_wants_more_of_the_bodies(
    sink: Memory, clock: FakeClock, level: AuditLevel, wants: tuple[bool, bool]
) -> None:
    """2.7."""
    request = prepared(auditor(sink, clock, level))
    assert (request.wants_request_body, request.wants_response_body) == wants
    request.complete_with(
        "i", "", 200, received_at=1000.0, at=1000.0, request_body=b'{"a": 1}', response_body=b'{"b": "\\u2028"}'
    )
    (event,) = sink.events
    assert (event.get("requestObject") == {"a": 1}, event.get("responseObject") == {"b": "\u2028"}) == wants
    assert event["responseStatus"] == {"metadata": {}, "code": 200}


def test_a_body_that_cannot_be_recorded_is_replaced_by_why(sink: Memory, clock: FakeClock) -> None:
    """T2: what a caller sends does not decide how much is kept."""
    audit = auditor(sink, clock, AuditLevel.REQUEST_RESPONSE, largest_body=10)
    prepared(audit).complete_with(
        "i", "", 200, received_at=1000.0, at=1000.0, request_body=b'{"a": "12345678"}', response_body=b"k8s\x00"
    )
    (event,) = sink.events
    assert not {"requestObject", "responseObject"} & set(event)
    assert event["annotations"]["audit.ostiary.dev/request-object-omitted"] == "it is larger than 10 bytes"
    assert event["annotations"]["audit.ostiary.dev/response-object-omitted"] == "it is not a JSON object"


def test_bodies_that_hold_a_credential_are_never_asked_for(sink: Memory, clock: FakeClock) -> None:
    """L6."""
    request = prepared(auditor(sink, clock, AuditLevel.REQUEST_RESPONSE), SECRET)
    assert not request.wants_request_body
    assert not request.wants_response_body
    request.complete_with(
        "i",
        "",
        201,
        received_at=1000.0,
        at=1000.0,
        request_body=b'{"data":"canary"}',
        response_body=b'{"data":"canary"}',
    )
    assert "canary" not in sink.lines[0]


def test_a_stream_has_no_bodies(sink: Memory, clock: FakeClock) -> None:
    request = prepared(auditor(sink, clock, AuditLevel.REQUEST_RESPONSE), long_running=True)
    assert not request.wants_response_body


# --- blocking ---


def test_a_request_whose_first_event_cannot_be_stored_is_refused(sink: Memory, clock: FakeClock) -> None:
    """2.7."""
    sink.full = True
    with pytest.raises(AuditUnavailable) as caught:
        prepared(auditor(sink, clock)).record_received("i", "", 1000.0)
    assert caught.value.code == "audit-unavailable"


# --- a sink that breaks its promise ---


class Broken(Memory):
    """As a foreign provider may be: it raises whatever it likes."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def accept(self, line: str) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("canary-31f0"), AuditUnavailable("canary-31f0")])
def test_a_sink_that_raises_though_it_must_not_refuses_nobody_and_is_counted(
    sink: Memory, clock: FakeClock, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """S70."""
    broken = Broken(error)
    audit = Auditor(Policy((AuditRule(AuditLevel.METADATA),)), [broken, sink], clock=clock, may_refuse=False)
    for number in range(3):
        prepared(audit).record_received(f"{number}", "", 1000.0)
    assert len(sink.lines) == audit.dropped == 3
    assert caplog.messages == ["an audit provider fails: its events are dropped"], "once, not for every event"
    assert "canary" not in str([vars(record) for record in caplog.records])


def test_blocking_a_sink_that_fails_in_any_way_refuses_the_request(clock: FakeClock) -> None:
    """S70: nothing passes without a record, and what a foreign exception says is told to nobody."""
    audit = auditor(Broken(RuntimeError("canary-31f0")), clock, blocking=True)
    with pytest.raises(AuditUnavailable) as caught:
        prepared(audit).record_received("i", "", 1000.0)
    assert caught.value.cause == "Broken has failed: RuntimeError"
    assert "canary" not in f"{caught.value!r} {caught.value}"
    assert caught.value.__suppress_context__


async def test_a_sink_that_fails_to_flush_or_close_keeps_nobody_from_it(
    sink: Memory, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Memory):
        async def flush(self) -> None:
            raise RuntimeError

        async def close(self) -> None:
            raise LookupError

    closed: list[str] = []

    class Noting(Memory):
        async def close(self) -> None:
            closed.append("closed")

    audit = Auditor(Policy((AuditRule(AuditLevel.METADATA),)), [Stubborn(), Noting()], clock=clock)
    await audit.flush()
    await audit.close()
    assert closed == ["closed"]
    assert len(caplog.messages) == 2


async def test_events_reach_the_file_whole_and_in_order(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "audit.log"
    audit = Auditor(Policy((AuditRule(AuditLevel.METADATA),)), [FileAudit(file, clock=clock)], clock=clock)
    request = prepared(audit)
    for number in range(1000):
        request.complete(f"id-{number}", "", 200, received_at=1000.0, at=1000.0)
    await audit.close()
    assert [json.loads(line)["auditID"] for line in file.read_text().splitlines()] == [f"id-{n}" for n in range(1000)]
    assert audit.dropped == 0


# --- origins ---


def test_origins_are_kept_and_bounded(sink: Memory, clock: FakeClock) -> None:
    """T2."""
    audit = auditor(sink, clock)
    assert audit.origin(("192.0.2.1",), "a") is audit.origin(("192.0.2.1",), "a")
    for number in range(10_000):
        audit.origin((str(number),), "x" * 2000)
    assert len(audit._origins) <= 4096
    assert "TRUNCATED" in audit.origin(("192.0.2.1",), "x" * 2000)


@pytest.mark.parametrize("decision", [None, Decision(Verdict.ALLOW, "because")])
def test_the_scope_of_a_token_is_in_every_event_whichever_way_it_ends(
    sink: Memory, clock: FakeClock, decision: Decision | None
) -> None:
    audit = auditor(sink, clock)
    delegation = narrow(None, parse_scope("get pods -n shop; get /a"), 'agent "x"')
    for _ in range(2):
        request = prepared(audit, decision=decision, delegation=delegation)
        request.complete("id", "", 200, received_at=0.0, at=0.0)
        request.complete_with("id", "", 200, received_at=0.0, at=0.0, annotations={"more": "1"})
    notes = [event["annotations"] for event in sink.events]
    assert len(notes) == 4
    for each in notes:
        assert each["ostiary.dev/scope"] == "get /a; get pods -n shop"
        assert each["ostiary.dev/actor"] == 'agent "x"'
        assert ("authorization.k8s.io/decision" in each) is (decision is not None)
