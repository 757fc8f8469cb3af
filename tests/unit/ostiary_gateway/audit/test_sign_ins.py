"""Sign-ins in the log, in the metrics and in the audit record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostiary_gateway.audit.ended_requests import EndedRequests
from ostiary_gateway.audit.sign_ins import LoginEvent, LoginEventKind, SignInRecorder, log_event
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.audit.memory_sink import Memory, auditor


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("", "login issued: provider home, user ann, session s1, from 127.0.0.1"),
        ("everywhere", "login issued: provider home, user ann, session s1, from 127.0.0.1: everywhere"),
    ],
)
def test_a_line_of_the_log_ends_where_there_is_no_more_to_tell(
    caplog: pytest.LogCaptureFixture, reason: str, line: str
) -> None:
    with caplog.at_level("INFO", "ostiary_gateway.login"):
        log_event(LoginEvent(LoginEventKind.ISSUED, 200, "home", "ann", "s1", "127.0.0.1", reason))
    assert [record.getMessage() for record in caplog.records] == [line]


EVENT = LoginEvent(
    LoginEventKind.REFUSED,
    403,
    "home",
    remote_address="192.0.2.1",
    reason="wrong password",
    id="0a1b",
    method="POST",
    path="/auth/home",
    claimed="ann",
)


class Recording:
    """A recorder and everything that it writes to."""

    def __init__(self, clock: FakeClock) -> None:
        self.sink, self.metrics, self.ended = Memory(), Metrics(), EndedRequests(clock=clock)
        self.recorder = SignInRecorder(auditor(self.sink, clock), self.metrics, self.ended, clock=clock)


def test_a_refused_sign_in_is_counted_remembered_and_recorded(clock: FakeClock) -> None:
    recording = Recording(clock)
    recording.recorder.record(EVENT)
    assert recording.metrics.logins.values == {("home", "refused"): 1}
    ended = recording.ended.recall("0a1b")
    assert ended is not None
    assert (ended.username, ended.status, ended.reason, ended.login) == ("ann", 403, "wrong password", "refused")
    (event,) = [event for event in recording.sink.events if event["stage"] == "ResponseComplete"]
    assert event["auditID"] == "0a1b"
    assert event["requestURI"] == "/auth/home"
    assert event["sourceIPs"] == ["192.0.2.1"]
    assert event["responseStatus"]["code"] == 403
    assert event["annotations"]["ostiary.dev/claimed-user"] == "ann"
    assert "ostiary.dev/session" not in event["annotations"]


def test_a_sign_in_that_succeeded_is_recorded_with_its_user_and_not_remembered(clock: FakeClock) -> None:
    recording = Recording(clock)
    issued = replace(EVENT, kind=LoginEventKind.ISSUED, status=200, username="ann", claimed="", session="s1")
    recording.recorder.record(issued)
    assert recording.ended.recall("0a1b") is None
    (event,) = recording.sink.events
    assert event["user"]["username"] == "ann"
    assert event["annotations"]["ostiary.dev/session"] == "s1"


def test_an_event_that_cannot_be_stored_is_logged_and_stops_nobody(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    recording = Recording(clock)
    recording.sink.full = True
    recording.recorder.record(EVENT)
    assert "an audit event could not be stored" in caplog.messages
