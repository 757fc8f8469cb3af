"""What is written down about a request, and what is done when it cannot be."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import Attributes
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.interfaces.admission import Admission
from tests.support.http1 import Upstreamed, connected, get, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    DENY,
    Gateway,
    ImmediatePolicy,
    at,
    configured,
    kubernetes,
    serving,
)
from tests.unit.ostiary_gateway.proxy.test_request_tasks import Broken

NOWHERE = "http://127.0.0.1:1"
BLOCKING = {"blocking": True, "log": {"path": "audit.log"}}


def fill_the_disk(site: Gateway) -> None:
    """From now on no audit event can be written."""
    sink: Any = site.worker.app.auditor.sinks[0]
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, sink._file)
    os.close(full)
    # On a slow machine it would look for a rotated file meanwhile, and open its own anew.
    sink._look_again_at = float("inf")


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


async def test_a_watch_goes_on_if_the_disk_is_full_when_it_begins_and_each_lost_event_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    async def held(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.head())
        await release.wait()
        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await connection.rest()

    async with upstream(held) as made:
        config = configured(tmp_path, at(made), upstreams=kubernetes(at(made)), audit=BLOCKING)
        async with serving(config) as site:
            async with connected(site.port) as client:
                client.send(site.request("/api/v1/pods?watch=1"))
                await until(lambda: bool(made.requests))
                fill_the_disk(site)
                release.set()
                assert (await client.head()).status == 200
                assert await client.exactly(10) == b"5\r\nfirst\r\n"
                assert len(lost_events(caplog)) == 1
            await until(lambda: site.streams == 0)
            assert len(lost_events(caplog)) == 2


async def test_a_failure_inside_whose_event_cannot_be_stored_is_logged_and_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(configured(tmp_path, NOWHERE, audit=BLOCKING), admission=(Provider("broken", "broken", Broken()),))
    async with serving(config, may_fail_inside=True) as site:
        fill_the_disk(site)
        assert (await site.ask()).status == 500
    assert len(lost_events(caplog)) == 2, "of the failure, and of its answer"


async def test_an_admission_provider_is_told_once_how_each_request_ended_that_it_admitted(tmp_path: Path) -> None:
    class Noting:
        def __init__(self) -> None:
            self.settlements: list[tuple[str, str, int]] = []

        def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
            return Admission(attributes.request.path != "/full", "the quota is used up")

        def settled(self, attributes: Attributes, *, status: int) -> None:
            self.settlements.append((attributes.user.username, attributes.request.path, status))

    async def conflicts(connection: Upstreamed) -> None:
        while True:
            await connection.request()
            connection.send(b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n")

    provider = Noting()
    async with upstream(conflicts) as made:
        config = replace(configured(tmp_path, at(made)), admission=(Provider("quota", "quota", provider),))
        async with serving(config) as site:
            assert [(await site.ask(path)).status for path in ("/x", "/full", "/x")] == [409, 403, 409]
            assert provider.settlements == [("alice", "/x", 409)] * 2
