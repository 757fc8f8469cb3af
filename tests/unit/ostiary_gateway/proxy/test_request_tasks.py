"""Whatever goes wrong inside the gateway: the client is answered, the seat given back, and the operator told."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import Attributes
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.interfaces.admission import Admission
from ostiary_gateway.proxy.context import RequestContext
from tests.support.http1 import connected, get, listening, until, upstream
from tests.support.http1_server import Held
from tests.unit.ostiary_gateway.proxy.gateways import Policy, at, configured, serving


class Broken:
    """An admission provider that says when to come back in words, against its contract."""

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        soon: Any = "soon"
        return Admission(False, "the quota is used up", soon)

    def settled(self, attributes: Attributes, *, status: int) -> None: ...


@pytest.mark.parametrize("kind", ["at once", "after waiting for a decision"])
async def test_a_failure_gives_the_seat_back_and_is_answered_logged_and_recorded(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy() if kind == "after waiting for a decision" else None
    async with upstream() as made:
        config = replace(configured(tmp_path, at(made), policy), admission=(Provider("broken", "broken", Broken()),))
        async with serving(config, may_fail_inside=True) as site:
            for _ in range(2):
                answer = await site.ask()
                assert answer.status == 500
                assert site.seats == 0
            panics = [event for event in await site.events() if event["stage"] == "Panic"]
            assert len(panics) == 2
            assert panics[-1]["auditID"].encode() == answer.one("Audit-Id")
            ended = site.ended(answer)
            assert ended is not None
            assert ended.reason == "the gateway failed, or could not store the audit event"
        assert made.requests == []
    lines = [record for record in caplog.records if record.getMessage() == "a request failed inside the gateway"]
    assert [line.levelno for line in lines] == [logging.ERROR] * 2
    assert lines[-1].__dict__["request_id"].encode() == answer.one("Audit-Id")
    assert lines[-1].exc_info is not None, "the operator sees where"


async def test_a_failure_after_the_whole_answer_leaves_the_connection_to_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starlette answers 500 itself, and then raises."""
    async with upstream() as made, serving(configured(tmp_path, at(made)), may_fail_inside=True) as site:

        async def fail(*args: object, **more: object) -> None:
            raise RuntimeError("nobody expected this")

        monkeypatch.setattr(site.store, "revoke", fail)
        lines, body = "Content-Type: application/json", b'{"type": "user", "value": "bob"}'
        answer = await site.ask("/apis/ostiary.dev/v1/revocations", lines, method="POST", body=body)
        assert answer.status == 500
        assert (await site.ask()).status == 200


async def test_a_failure_in_the_middle_of_an_answer_cuts_it_so_that_the_client_notices(tmp_path: Path) -> None:
    held = Held()
    gateway = serving(configured(tmp_path, "http://127.0.0.1:1"), may_fail_inside=True)
    async with gateway as site, listening(held) as listener, connected(listener.port) as client:
        client.send(get())
        await until(lambda: bool(held.exchanges))
        ctx = RequestContext(held.exchanges[0], site.clock.monotonic(), "an-id")
        ctx.exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        assert (await client.head()).status == 200
        site.worker.app.engine._tasks.fail(ctx, RuntimeError("nobody expected this"))
        with pytest.raises(ConnectionResetError):
            await client.rest()


class Quota:
    """An admission provider that admits the first request, and no other."""

    def __init__(self) -> None:
        self.sizes: list[int | None] = []

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        self.sizes.append(size)
        return Admission(len(self.sizes) == 1, "the quota is used up")

    def settled(self, attributes: Attributes, *, status: int) -> None: ...


async def test_what_is_admitted_passes_and_what_is_not_goes_no_further(tmp_path: Path) -> None:
    quota = Quota()
    async with upstream() as made:
        config = replace(configured(tmp_path, at(made)), admission=(Provider("quota", "quota", quota),))
        async with serving(config) as site:
            assert (await site.ask(method="POST", body=b"12345")).status == 200
            assert (await site.ask()).status == 403
            chunked = site.request("/x", "Transfer-Encoding: chunked", method="POST") + b"0\r\n\r\n"
            assert (await site.client.ask(chunked)).status == 403
            assert quota.sizes == [5, 0, None]
            assert site.count("admission_refusals_total") == 2
            assert site.seats == 0
        assert len(made.requests) == 1


@pytest.mark.parametrize(("retry_after", "told"), [(0.0, b"1"), (1.0, b"1"), (1.1, b"2")])
async def test_who_is_to_come_back_is_told_whole_seconds_and_one_at_least(
    tmp_path: Path, retry_after: float, told: bytes
) -> None:
    class Later(Quota):
        def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
            return Admission(False, "the quota is used up", retry_after)

    config = replace(configured(tmp_path, "http://127.0.0.1:1"), admission=(Provider("later", "later", Later()),))
    async with serving(config) as site:
        answer = await site.ask()
        assert (answer.status, answer.one("Retry-After")) == (429, told)


async def test_the_gateway_is_busy_while_a_request_waits_for_a_decision(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        engine = site.worker.app.engine
        policy.gate.clear()
        site.client.send(site.request())
        await policy.reached.wait()
        assert engine.busy, "else a reload would close what the request still needs"
        policy.gate.set()
        assert (await site.client.answer()).status == 200
        await until(lambda: not engine.busy)
