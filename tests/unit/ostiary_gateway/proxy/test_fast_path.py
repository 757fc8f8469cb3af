"""A request that is passed on in one object behaves in everything as one with an exchange, a passage and a
`ProxiedRequest`.

Each test has such a request under way, which it makes sure of, and lets something happen to it.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.fast_path import FastForward
from ostiary_gateway.proxy.proxied_request import ProxiedRequest
from tests.support.http1 import connected, get, turn, until
from tests.unit.ostiary_gateway.proxy.gateways import (
    DENY,
    ImmediatePolicy,
    NamelessPolicy,
    another_token,
    kubernetes,
)
from tests.unit.ostiary_gateway.proxy.transit_scene import (
    OK,
    PODS,
    UNTIL_KNOWN,
    scene,
)

# --- the usual way ---


async def test_it_is_sent_answered_counted_and_recorded_like_the_first_one(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        fast_forward = await it.begin("/x", "X-Own: a")
        assert it.gateway.seats == 1
        assert it.engine.busy
        answer = await it.answer()
        first, *_, last = it.made.requests
        assert (last.start, [each for each in last.headers if each[0] != b"Audit-Id"]) == (
            first.start,
            [each for each in first.headers if each[0] != b"Audit-Id"],
        )
        assert last.one("Audit-Id") == answer.one("Audit-Id") == fast_forward.audit_id.encode()
        assert (answer.status, answer.body, answer.one("Connection")) == (200, b"ok", None)
        it.is_over()
        events = await it.gateway.events()
        assert len({event["auditID"] for event in events}) == len(events) == UNTIL_KNOWN + 1
        assert events[-1]["auditID"] == fast_forward.audit_id
        varying = ("auditID", "requestReceivedTimestamp", "stageTimestamp")
        first_event, last_event = (
            {key: value for key, value in event.items() if key not in varying} for event in (events[0], events[-1])
        )
        assert first_event == last_event
        assert it.gateway.count("requests_total", "200") == UNTIL_KNOWN + 1


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_write_without_a_body_is_passed_on_too(tmp_path: Path, method: str) -> None:
    async with scene(tmp_path) as it:
        await it.begin(method=method)
        assert (await it.answer()).status == 200
        assert it.made.requests[-1].start == f"{method} /x HTTP/1.1".encode()
        assert await it.codes() == [200] * (UNTIL_KNOWN + 1)


async def test_a_head_request_is_not_passed_on(tmp_path: Path) -> None:
    """Where its answer ends is another question."""
    async with scene(tmp_path) as it:
        it.answering.holds = True
        for number in range(UNTIL_KNOWN + 2):
            it.client.send(it.gateway.request(method="HEAD"))
            await until(lambda number=number: len(it.answering.waiting) == number + 1)  # type: ignore[misc]
            assert it.under_way == []
            assert (await it.answer(b"HTTP/1.1 200 OK\r\nX-Own: a\r\n\r\n", "HEAD")).status == 200


async def test_trace_ids_are_those_of_the_request_itself(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        for number in range(UNTIL_KNOWN):
            assert (await it.gateway.ask("/x", f"Traceparent: 00-{number}")).status == 200
        await it.send(it.gateway.request("/x", "Traceparent: 00-last"))
        assert it.made.requests[-1].one("Traceparent") == b"00-last"
        assert (await it.answer()).status == 200


# --- objects of one kind ---


@pytest.mark.parametrize("unfolds", [False, True])
async def test_the_name_in_the_record_is_that_of_the_request(tmp_path: Path, unfolds: bool) -> None:
    async with scene(tmp_path, NamelessPolicy(), upstreams=kubernetes("")) as it:
        await it.begin(f"{PODS}/web-1")
        await it.answer()
        fast_forward = await it.send(it.gateway.request(f"{PODS}/web-7"))
        assert fast_forward.filled is not None
        if unfolds:
            it.engine.tick()
            (proxied,) = it.engine.open_exchanges
            assert proxied.context.plan.info.name == "web-7"
        assert (await it.answer()).status == 200
        assert it.made.requests[-1].target == f"{PODS}/web-7".encode()
        event = (await it.gateway.events())[-1]
        assert (event["objectRef"]["name"], event["requestURI"]) == ("web-7", f"{PODS}/web-7")
        it.is_over()


async def test_a_name_that_comes_again_gets_a_plan_of_its_own(tmp_path: Path) -> None:
    policy = NamelessPolicy()
    async with scene(tmp_path, policy, upstreams=kubernetes("")) as it:
        await it.begin(f"{PODS}/web-1")
        await it.answer()
        fast_forwards = []
        for _ in range(UNTIL_KNOWN):
            it.answering.waiting.clear()
            it.client.send(it.gateway.request(f"{PODS}/web-7"))
            await until(lambda: bool(it.answering.waiting))
            fast_forwards += it.under_way
            assert (await it.answer()).status == 200
        assert fast_forwards[0].filled is not None
        assert fast_forwards[-1].filled is None
        assert len(policy.asked) == 1


async def test_a_name_is_not_passed_on_after_the_policy_has_changed(tmp_path: Path) -> None:
    policy = NamelessPolicy()
    async with scene(tmp_path, policy, upstreams=kubernetes("")) as it:
        await it.begin(f"{PODS}/web-1")
        await it.answer()
        policy.rule = DENY
        policy.revision += 1
        it.gateway.clock.advance(1)
        for name in ("web-1", "web-8"):
            assert (await it.gateway.ask(f"{PODS}/{name}")).status == 403


# --- limits ---


async def test_the_rate_of_a_user_is_the_same(tmp_path: Path) -> None:
    limits = {"requestsPerSecond": 1, "burst": UNTIL_KNOWN + 3}
    async with scene(tmp_path, limits=limits) as it:
        await it.begin()
        await it.answer()
        it.answering.holds = False
        assert [(await it.gateway.ask()).status for _ in range(4)] == [200, 200, 429, 429]
        it.gateway.clock.advance(1)
        assert [(await it.gateway.ask()).status for _ in range(2)] == [200, 429]
        it.is_over()


async def test_who_has_no_seat_left_waits_for_one(tmp_path: Path) -> None:
    async with scene(tmp_path, limits={"concurrencyPerUser": 1}) as it, connected(it.gateway.port) as other:
        bob = await another_token(it.gateway, UserInfo("bob"))
        await it.begin()
        first = it.remote
        other.send(get("/x", f"Authorization: Bearer {bob}"))
        await until(lambda: it.remote is not first)
        it.remote.send(OK)
        first.send(OK)
        assert (await other.answer()).status == (await it.client.answer()).status == 200
        pool = it.gateway.worker.app.routes.upstreams[0].pool
        assert len(pool._idle) == 2
        await it.send(it.gateway.request())
        sent = len(it.made.requests)
        other.send(it.gateway.request())
        await until(lambda: it.gateway.worker.app.shared.limits.seats.queued == 1)
        assert len(it.made.requests) == sent
        assert len(pool._idle) == 1, "the connection that it would have had is there for others"
        it.answering.holds = False
        assert (await it.answer()).status == 200
        assert (await other.answer()).status == 200
        it.is_over()


async def test_users_without_limits_take_no_seat(tmp_path: Path) -> None:
    async with scene(tmp_path, limits={"exemptUsers": ["alice"]}) as it:
        await it.begin()
        assert it.gateway.seats == 0
        assert (await it.answer()).status == 200
        await it.begin()
        it.engine.tick()
        assert (await it.answer()).status == 200
        it.is_over()


async def test_a_connection_counts_for_the_user_whose_request_came_last(tmp_path: Path) -> None:
    async with scene(tmp_path, limits={"connectionsPerUser": 1}) as it, connected(it.gateway.port) as other:
        bob = await another_token(it.gateway, UserInfo("bob"))
        data = get("/x", f"Authorization: Bearer {bob}")
        fast_forward = await it.begin()
        await it.answer()
        alice = fast_forward.plan.share
        assert alice.connections == 1
        fast_forward = await it.begin(data=data)
        assert (alice.connections, fast_forward.plan.share.connections) == (0, 1)
        await it.answer()
        other.send(data)
        assert (await other.answer()).status == 429, "bob has the one connection that he may have"
        assert await other.closed()
        await it.send(it.gateway.request())
        assert alice.connections == 1
        assert (await it.answer()).status == 200
        it.is_over()


async def test_what_takes_long_counts_as_a_stream(tmp_path: Path) -> None:
    async with scene(tmp_path, limits={"streamAfter": "5s"}) as it:
        await it.begin()
        await it.gateway.tick(4)
        assert (it.gateway.seats, it.gateway.streams) == (1, 0)
        await it.gateway.tick(1)
        assert (it.gateway.seats, it.gateway.streams) == (0, 1)
        assert (await it.answer()).status == 200
        it.is_over()


# --- who looks on ---


async def test_whoever_watches_decisions_sees_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        fast_forward = await it.begin()
        it.gateway.worker.app.shared.recent.watch()
        assert (await it.answer()).status == 200
        (decision,) = it.gateway.worker.app.shared.recent.latest(10)
        assert decision.id == fast_forward.audit_id


async def test_a_sink_that_fails_harms_nothing(tmp_path: Path) -> None:
    class Failing:
        dropped = 0

        def accept(self, line: str) -> None:
            raise OSError("no space")

        async def flush(self) -> None: ...

    async with scene(tmp_path) as it:
        await it.begin()
        it.gateway.worker.app.auditor.sinks = (Failing(),)
        assert (await it.answer()).status == 200
        it.is_over()
        assert it.gateway.worker.app.auditor.dropped == 1


async def test_what_must_be_recorded_first_is_not_passed_on(tmp_path: Path) -> None:
    async with scene(tmp_path, audit={"blocking": True, "log": {"path": "audit.log"}}) as it:
        it.answering.holds = True
        for number in range(UNTIL_KNOWN + 2):
            it.client.send(it.gateway.request())
            await until(lambda number=number: len(it.answering.waiting) == number + 1)  # type: ignore[misc]
            assert it.under_way == []
            assert (await it.answer()).status == 200


@pytest.mark.parametrize(
    "sections",
    [
        {"upstreams": [{**kubernetes("")[0], "shadow": {"share": 1}}]},
        {"tracing": {"endpoint": "http://127.0.0.1:1"}, "upstreams": kubernetes("")},
    ],
    ids=["shadow", "tracing"],
)
async def test_where_each_request_must_be_looked_at_none_is_passed_on(tmp_path: Path, sections: dict[str, Any]) -> None:
    async with scene(tmp_path, ImmediatePolicy(), **sections) as it:
        for _ in range(UNTIL_KNOWN):
            assert (await it.gateway.ask(f"{PODS}/web-1")).status == 200
        it.answering.holds = True
        it.client.send(it.gateway.request(f"{PODS}/web-1"))
        await until(lambda: any(f"{PODS}/web-1".encode() in bytes(each.raw) for each in it.answering.waiting))
        assert it.under_way == []


async def test_beside_doors_it_is_passed_on_and_a_question_of_a_proxy_is_not(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret-0f-this-d00r")
    doors = [{"name": "nginx", "proxy": "nginx", "callers": {"tokenFile": "secret"}}]
    upstreams = [*kubernetes(""), {"name": "shop", "attributes": "http", "hosts": ["shop.example"]}]
    async with scene(tmp_path, NamelessPolicy(), upstreams=upstreams, doors=doors) as it:
        question = get(
            "/doors/nginx/shop",
            "X-Ostiary-Door: s3cret-0f-this-d00r",
            "X-Original-Method: GET",
            "X-Original-URI: /x",
            "X-Original-Host: shop.example",
            "X-Forwarded-For: 192.0.2.7",
            f"Authorization: Bearer {it.gateway.token}",
        )
        await it.begin(f"{PODS}/web-1")
        await it.answer()
        sent = len(it.made.requests)
        for _ in range(UNTIL_KNOWN + 1):
            assert (await it.client.ask(question)).status == 200
            assert it.under_way == []
        assert len(it.made.requests) == sent
        # With the header lines of requests that were passed on.
        assert (await it.gateway.ask("/doors/nginx/shop")).status != 200
        await it.send(it.gateway.request(f"{PODS}/web-2"))
        assert (await it.answer()).status == 200
        it.is_over()


# --- failures inside ---


async def test_a_failure_before_it_is_sent_is_answered_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path, may_fail_inside=True) as it:
        await it.begin()
        await it.answer()
        pool = it.gateway.worker.app.routes.upstreams[0].pool

        def fail() -> None:
            raise RuntimeError("nobody expected this")

        with monkeypatch.context() as broken:
            broken.setattr(pool, "idle", fail)
            assert (await it.gateway.ask()).status == 500
        it.is_over()
        it.answering.holds = False
        assert (await it.gateway.ask()).status == 200
    assert "Panic" in [event["stage"] for event in await it.gateway.events()]


async def test_a_connection_that_cannot_be_written_to_keeps_no_seat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path, may_fail_inside=True) as it:
        await it.begin()
        await it.answer()
        (pooled,) = it.gateway.worker.app.routes.upstreams[0].pool.connections
        inner: Any = pooled.transport._inner

        def fail(data: bytes) -> None:
            raise RuntimeError("nobody expected this")

        monkeypatch.setattr(inner, "write", fail)
        it.answering.holds = False
        # So long that it leaves at once.
        assert (await it.gateway.ask("/x", "Tracestate: " + "a" * 17_000)).status == 200
        it.is_over()


async def test_a_mapper_that_fails_is_answered(tmp_path: Path) -> None:
    def fail(path: str, query: str) -> None:
        raise RuntimeError("nobody expected this")

    async with scene(tmp_path, NamelessPolicy(), upstreams=kubernetes(""), may_fail_inside=True) as it:
        await it.begin(f"{PODS}/web-1")
        await it.answer()
        (served,) = it.gateway.worker.app.routes.upstreams
        served.split_name = fail
        assert (await it.gateway.ask(f"{PODS}/web-2")).status == 500
        it.is_over()


# --- memory ---


@pytest.mark.parametrize("how", ["whole", "unfolded", "in parts", "cut", "lost"])
async def test_nothing_of_it_is_left_for_the_garbage_collector(tmp_path: Path, how: str) -> None:
    async with scene(tmp_path) as it:
        await it.begin()
        await it.answer()
        kinds = (FastForward, Exchange, RequestContext, ProxiedRequest)
        gc.collect()
        gc.disable()
        try:
            await it.send(it.gateway.request())
            if how == "unfolded":
                it.engine.tick()
            if how == "cut":
                await it.revoke(RevocationKind.USER, "alice")
                await it.is_cut()
            elif how == "lost":
                it.client.reset()
                await until(it.remote.reader.at_eof)
            elif how == "in parts":
                await it.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
            else:
                await it.answer()
            await turn(20)
            assert [type(each) for each in _garbage() if isinstance(each, kinds)] == []
        finally:
            gc.enable()


def _garbage() -> list[object]:
    """Return what only the garbage collector can free.

    `gc.get_objects` would also return tuples that another thread is still building, which breaks that thread.
    """
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
