"""Asking a cluster for its decision: every answer is told for what it is, and no request waits for any of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import Decision, Verdict
from ostiary_gateway.policy import shadow as comparison
from ostiary_gateway.proxy.upstreams import MOST_FAILURES
from tests.support.http1 import Script, Upstreamed, until, upstream
from tests.support.http1 import Upstream as Server
from tests.unit.ostiary_gateway.proxy.gateways import ALLOW, DENY, Gateway, ImmediatePolicy, at, configured, serving

PODS = "/api/v1/namespaces/team/pods"
EXEC = "/api/v1/namespaces/team/pods/web/exec"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def answer(body: bytes, status: bytes = b"201 Created") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def review(**status: Any) -> bytes:
    whole = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": status}
    return answer(json.dumps(whole).encode())


def script(*answers: bytes) -> Script:
    """Reviews get *answers*, the last one again and again; everything else is well."""
    left = list(answers)

    async def serve(connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            connection.upstream.requests.append(request)
            is_review = request.target == comparison.TARGET.encode()
            connection.send((left.pop(0) if len(left) > 1 else left[0]) if is_review else OK)

    return serve


@asynccontextmanager
async def shadowed(
    folder: Path, serve: Script, decision: Decision = ALLOW, **shadow: Any
) -> AsyncIterator[tuple[Gateway, Server]]:
    async with upstream(serve) as made:
        cluster = {"name": "k", "server": at(made), "attributes": "kubernetes", "identity": "none"}
        upstreams = [{**cluster, "shadow": {"share": 1, "perSecond": 1000, **shadow}}]
        async with serving(configured(folder, "", ImmediatePolicy(decision), upstreams=upstreams)) as gateway:
            yield gateway, made


def count(gateway: Gateway, outcome: str) -> float:
    return gateway.count("shadow_reviews_total", outcome)


async def _counted(gateway: Gateway, outcome: str, times: int) -> None:
    await until(lambda: count(gateway, outcome) == times)


async def shadow_event(gateway: Gateway) -> dict[str, Any]:
    (event,) = [event for event in await gateway.events() if event["stage"] == "ShadowReview"]
    return event


async def test_every_answer_is_told_for_what_it_is(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        (ALLOW, review(allowed=True, reason="a rule"), "agree"),
        (ALLOW, review(allowed=True).replace(b"201 Created", b"200 OK"), "agree"),
        (ALLOW, review(allowed=True).replace(b"201 Created", b"202 Accepted"), "unknown"),
        (DENY, review(allowed=False, denied=True), "agree"),
        (DENY, review(allowed=False), "agree"),
        (Decision(Verdict.NO_OPINION, hidden=True), review(allowed=False), "agree"),
        (ALLOW, review(allowed=False, reason="no rule"), "only_gateway_allows"),
        (DENY, review(allowed=True, reason="a rule"), "only_cluster_allows"),
        (ALLOW, review(allowed=True, denied=True), "unknown"),
        (ALLOW, review(), "unknown"),
        (ALLOW, answer(b"{}"), "unknown"),
        (ALLOW, answer(b"not json"), "unknown"),
        (ALLOW, answer(b"{}", b"403 Forbidden"), "unknown"),
        (ALLOW, answer(b"{}", b"401 Unauthorized"), "unknown"),
        (ALLOW, answer(b"{}", b"503 Unavailable"), "unknown"),
        (ALLOW, b"HTTP/1.1 nonsense\r\n\r\n", "unknown"),
    ]
    for decision, reply, outcome in cases:
        with subtests.test(decision=decision, reply=reply, outcome=outcome):
            tmp_path = tmp_path_factory.mktemp("case")
            async with shadowed(tmp_path, script(reply), decision) as (gateway, _):
                assert (await gateway.ask(PODS)).status == (200 if decision.allowed else 403)
                await _counted(gateway, outcome, 1)
                event = await shadow_event(gateway)
                assert event["annotations"]["ostiary.dev/shadow"] == outcome
                assert event["annotations"]["authorization.k8s.io/decision"] == (
                    "allow" if decision.allowed else "forbid"
                )
                assert event["user"]["username"] == "alice"


async def test_no_request_waits_for_the_cluster_and_what_is_too_much_is_dropped(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def silent(connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            if request.target == comparison.TARGET.encode():
                await held.wait()
                connection.send(review(allowed=True))
            else:
                connection.send(OK)

    room = comparison.MOST_WAITING + comparison.MOST_AT_ONCE
    async with shadowed(tmp_path, silent, perSecond=10_000) as (gateway, _):
        for _ in range(room + 10):
            assert (await gateway.ask(PODS)).status == 200
        assert count(gateway, "dropped") == 10
        assert count(gateway, "agree") == 0
        held.set()
        await until(lambda: count(gateway, "agree") == room)


async def test_all_that_a_request_needs_is_asked_of_the_cluster(tmp_path: Path) -> None:
    """A terminal by GET needs two permissions: the gateway asks for both, so both are compared."""
    async with shadowed(tmp_path, script(review(allowed=True), review(allowed=False))) as (gateway, made):
        await gateway.ask(EXEC)
        await until(lambda: count(gateway, "only_gateway_allows") == 1)
        bodies = [json.loads(each.body) for each in made.requests if each.target == comparison.TARGET.encode()]
        assert [body["spec"]["resourceAttributes"]["verb"] for body in bodies] == ["get", "create"]


async def test_an_upstream_without_shadow_is_never_asked(tmp_path: Path) -> None:
    async with upstream(script(review(allowed=True))) as made:
        cluster = {"name": "k", "server": at(made), "attributes": "kubernetes", "identity": "none"}
        async with serving(configured(tmp_path, "", upstreams=[cluster])) as gateway:
            await gateway.ask(PODS)
            assert [each.target for each in made.requests] == [PODS.encode()]
            assert gateway.worker.snapshot()["ostiary_gateway_shadow_reviews_total"]["series"] == []


async def test_a_cluster_that_does_not_answer_holds_up_no_other(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def silent(connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            if request.target == comparison.TARGET.encode():
                await held.wait()
            connection.send(OK)

    async with upstream(silent) as bad, upstream(script(review(allowed=True))) as good:
        cluster = {"attributes": "kubernetes", "identity": "none", "shadow": {"share": 1, "perSecond": 10_000}}
        upstreams = [
            {**cluster, "name": "bad", "server": at(bad), "prefix": "/bad"},
            {**cluster, "name": "good", "server": at(good), "prefix": "/good"},
        ]
        async with serving(configured(tmp_path, "", ImmediatePolicy(ALLOW), upstreams=upstreams)) as gateway:
            for _ in range(comparison.MOST_WAITING + comparison.MOST_AT_ONCE + 1):
                assert (await gateway.ask(f"/bad{PODS}")).status == 200
            assert count(gateway, "dropped") == 1
            assert (await gateway.ask(f"/good{PODS}")).status == 200
            await until(lambda: count(gateway, "agree") == 1)
            held.set()


@pytest.mark.parametrize("reply", [b"HTTP/1.1 nonsense\r\n\r\n", answer(b" " * 2_000_000), b""])
async def test_a_cluster_that_answers_only_reviews_badly_stays_ready(tmp_path: Path, reply: bytes) -> None:
    """Whoever is only ever refused could otherwise take the gateway out of service."""

    async def serve(connection: Upstreamed) -> None:
        await connection.request()
        connection.send(reply)
        connection.writer.close()

    async with shadowed(tmp_path, serve, DENY) as (gateway, _):
        for number in range(1, MOST_FAILURES + 2):
            assert (await gateway.ask(PODS)).status == 403
            await _counted(gateway, "unknown", number)
        (place,) = gateway.worker.app.routes.upstreams
        assert place.trouble() == ""
