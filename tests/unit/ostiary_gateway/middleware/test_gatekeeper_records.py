"""Without the section ``audit`` refusals and failures leave a line in the log, and nothing else does."""

from __future__ import annotations

import logging

import pytest

from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.middleware import access as refusing
from ostiary_gateway.middleware.gatekeeper import BackendRecords
from ostiary_gateway.middleware.request import BackendRequest
from ostiary_gateway.testing import FakeClock

REQUEST = BackendRequest("GET", b"/x?token=canary", b"canary-token")


def test_a_refusal_is_found_by_its_id(caplog: pytest.LogCaptureFixture) -> None:
    records = BackendRecords(None, FakeClock())
    with caplog.at_level(logging.INFO, "ostiary.backend"):
        records.record_refusal(REQUEST, refusing.unavailable("id-1", "no route"), "id-1", 0.0)
        records.record_refusal(REQUEST, refusing.bad_request("id-2", "two"), "id-2", 0.0, UserInfo("ann"))
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "request id-1: the token could not be checked (503): no route" in caplog.text
    assert "canary" not in caplog.text


async def test_without_an_auditor_nothing_is_prepared() -> None:
    records = BackendRecords(None, FakeClock())
    assert records.prepare(REQUEST, RequestInfo("get", "GET", "/x"), None) is None
    assert records.new_id() != records.new_id()
    await records.close()
