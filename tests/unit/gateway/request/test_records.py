"""What is written down about a request, and what is done when it cannot be."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.http1 import get, upstream
from tests.unit.gateway.request.gateways import DENY, Gateway, ImmediatePolicy, at, configured, serving

NOWHERE = "http://127.0.0.1:1"
BLOCKING = {"blocking": True, "log": {"path": "audit.log"}}


def fill_the_disk(site: Gateway) -> None:
    """From now on no audit event can be written."""
    sink: Any = site.worker.app.auditor.sinks[0]
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, sink._file)
    os.close(full)


def lost_events(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record for record in caplog.records if record.getMessage() == "an audit event could not be stored"]
    assert all(line.levelno == logging.ERROR for line in lines)
    return [line.__dict__["cause"] for line in lines]


async def test_a_401_whose_event_cannot_be_stored_is_still_a_401(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(configured(tmp_path, NOWHERE, audit=BLOCKING)) as site:
        fill_the_disk(site)
        assert (await site.client.ask(get("/x"))).status == 401
    (cause,) = lost_events(caplog)
    assert "space" in cause


async def test_a_403_whose_event_cannot_be_stored_is_still_a_403(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(configured(tmp_path, NOWHERE, ImmediatePolicy(DENY), audit=BLOCKING)) as site:
        fill_the_disk(site)
        assert (await site.ask()).status == 403
    assert len(lost_events(caplog)) == 1


async def test_the_audit_policy_sees_the_path_of_a_request_whose_sender_is_unknown(tmp_path: Path) -> None:
    rules = [{"level": "None", "nonResourceURLs": ["/quiet"]}, {"level": "Metadata"}]
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
    (tmp_path / "policy.yaml").write_text(json.dumps(policy))
    audit = {"policy": "policy.yaml", "log": {"path": "audit.log"}}
    async with serving(configured(tmp_path, NOWHERE, audit=audit)) as site:
        for target in ("/quiet?x=1", "/loud?x=1"):
            assert (await site.client.ask(get(target))).status == 401
        assert {event["requestURI"] for event in await site.events()} == {"/loud?x=1"}


async def test_a_remembered_head_takes_of_the_memory_of_its_user(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        for _ in range(3):
            assert (await site.ask()).status == 200
        (head,) = site.worker._http.known._heads.values()
        assert head.known_owner == "alice"
        assert head.known_size > 1000, "its plan is part of it"
