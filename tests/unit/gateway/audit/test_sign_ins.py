"""Sign-ins in the log, in the metrics and in the audit record."""

from __future__ import annotations

import pytest

from ostiary.gateway.audit.sign_ins import LoginEvent, LoginEventKind, log_event


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
    with caplog.at_level("INFO", "ostiary.gateway.login"):
        log_event(LoginEvent(LoginEventKind.ISSUED, 200, "home", "ann", "s1", "127.0.0.1", reason))
    assert [record.getMessage() for record in caplog.records] == [line]
