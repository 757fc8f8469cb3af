"""From the token to the decision: what is waited for, what overtakes it, and what is asked once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ostiary.model import Decision, UserInfo, Verdict
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.limits.limits import SUSPECT_LOOKUPS
from ostiary_gateway.wire.token_format import new_token
from tests.support.http1 import Upstreamed, connected, get, turn, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALLOW,
    DENY,
    ImmediatePolicy,
    Policy,
    another_token,
    at,
    configured,
    serving,
    silent,
)

NOWHERE = "http://127.0.0.1:1"


def unknown() -> str:
    """A token that is well-formed, so that the store must be queried."""
    return new_token().reveal()


# --- identify ---


async def test_a_token_that_is_revoked_while_a_slow_store_is_asked_is_refused(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        await site.worker.app.shared.authenticator.feed.confirm()
        site.store.gate.clear()
        site.client.send(site.request())
        await site.store.reached.wait()
        await site.worker.app.shared.tokens.revoke(RevocationKind.USER, "alice")
        await site.worker.app.shared.authenticator.feed.confirm()
        site.store.gate.set()
        assert (await site.client.answer()).status == 401
        assert made.requests == []


async def test_a_client_that_hangs_up_while_a_slow_store_is_asked_is_forgotten(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        site.store.gate.clear()
        async with connected(site.port) as client:
            client.send(site.request())
            await site.store.reached.wait()
        await until(lambda: len(site.worker._http.connections) == 1)
        site.store.gate.set()
        await until(lambda: not site.worker.app.engine.busy)
        assert policy.asked == []
        assert made.requests == []


async def test_a_failed_attempt_counts_and_a_good_one_does_not(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), limits={"failuresPerMinute": 2})) as site:
        for _ in range(5):
            assert (await site.ask()).status == 200
            token = await another_token(site, UserInfo("bob"))
            assert (await site.client.ask(get("/x", f"Authorization: Bearer {token}"))).status == 200
        for _ in range(5):
            answer = await site.client.ask(get("/x", "Authorization: Bearer ost_unknown"))
        assert answer.status == 429
        assert (await site.ask()).status == 200, "who is known already is not asked about"


async def test_valid_tokens_are_served_while_a_neighbour_presents_invalid_ones(tmp_path: Path) -> None:
    """Behind a TCP load balancer all clients have one address."""
    async with upstream() as made, serving(configured(tmp_path, at(made), limits={"failuresPerMinute": 6})) as site:
        for _ in range(20):
            answer = await site.client.ask(get("/x", f"Authorization: Bearer {unknown()}"))
        assert answer.status == 429
        # The worker has not seen it before.
        token = await another_token(site, UserInfo("bob"))
        assert (await site.client.ask(get("/x", f"Authorization: Bearer {token}"))).status == 200


async def test_a_revoked_token_in_a_loop_is_not_looked_up_and_its_neighbours_still_get_401(tmp_path: Path) -> None:
    async with serving(configured(tmp_path, NOWHERE, limits={"failuresPerMinute": 60})) as site:
        revoked = get("/x", f"Authorization: Bearer {unknown()}")
        statuses = [(await site.client.ask(revoked)).status for _ in range(100)]
        assert statuses == [401] * 30 + [429] * 70
        assert site.store.lookups == 30
        expired = get("/x", f"Authorization: Bearer {unknown()}")
        assert (await site.client.ask(expired)).status == 401
        site.clock.advance(6)
        assert (await site.client.ask(revoked)).status == 401


async def test_few_tokens_are_looked_up_at_a_time_for_an_address_with_too_many_invalid_ones(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), limits={"failuresPerMinute": 1})) as site:
        assert (await site.client.ask(get("/x", "Authorization: Bearer ost_unknown"))).status == 401
        token = await another_token(site, UserInfo("bob"))
        site.store.gate.clear()
        before = site.store.lookups
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(site.port)) for _ in range(3 * SUSPECT_LOOKUPS)]
            for client in clients:
                client.send(get("/x", f"Authorization: Bearer {unknown()}"))
            await until(lambda: site.store.lookups - before == SUSPECT_LOOKUPS)
            last = await stack.enter_async_context(connected(site.port))
            last.send(get("/x", f"Authorization: Bearer {token}"))
            await turn(50)
            assert site.store.lookups - before == SUSPECT_LOOKUPS
            site.store.gate.set()
            assert {(await client.answer()).status for client in clients} == {429}
            assert (await last.answer()).status == 200


# --- decide ---


async def test_a_token_that_is_revoked_while_a_provider_decides_is_refused(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        policy.gate.clear()
        site.client.send(site.request())
        await policy.reached.wait()
        await site.worker.app.shared.tokens.revoke(RevocationKind.USER, "alice")
        await site.worker.app.shared.authenticator.feed.confirm()
        policy.gate.set()
        answer = await site.client.answer()
        assert answer.status == 401
        assert answer.one("WWW-Authenticate") == b'Bearer realm="ostiary", error="invalid_token"'
        assert made.requests == []
        assert site.seats == 0


async def test_a_client_that_hangs_up_while_a_provider_decides_reaches_no_upstream(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        policy.gate.clear()
        async with connected(site.port) as client:
            client.send(site.request())
            await policy.reached.wait()
        await until(lambda: len(site.worker._http.connections) == 1)
        policy.gate.set()
        await until(lambda: not site.worker.app.engine.busy)
        assert made.requests == []
        assert site.count("decisions_total") == 0


async def test_a_slow_decision_is_asked_for_once_for_equal_requests(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        policy.gate.clear()
        async with connected(site.port) as other:
            site.client.send(site.request())
            other.send(site.request())
            await policy.reached.wait()
            await turn(20)
            policy.gate.set()
            assert (await site.client.answer()).status == 200
            assert (await other.answer()).status == 200
        assert len(policy.asked) == 1
        assert len(made.requests) == 2


async def test_a_policy_that_changes_while_it_decides_counts_for_the_next_request(tmp_path: Path) -> None:
    class Revised(Policy):
        revision = 1

    policy = Revised()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        policy.gate.clear()
        site.client.send(site.request())
        await policy.reached.wait()
        policy.revision = 2
        policy.gate.set()
        assert (await site.client.answer()).status == 200
        policy.rule = DENY
        assert (await site.ask()).status == 403
        assert len(made.requests) == 1


# --- what was decided is used again ---


async def test_a_decision_is_used_again_until_its_time_is_up(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        for _ in range(3):
            assert (await site.ask()).status == 200
        site.clock.advance(9.9)
        await site.worker.app.shared.authenticator.feed.confirm()
        assert (await site.ask()).status == 200
        assert len(policy.asked) == 1
        policy.rule = DENY
        site.clock.advance(0.1)
        assert (await site.ask()).status == 403
        assert len(policy.asked) == 2
        policy.rule = ALLOW
        site.clock.advance(10)
        await site.worker.app.shared.authenticator.feed.confirm()
        assert (await site.ask()).status == 200
        assert len(made.requests) == 5


@pytest.mark.parametrize("seen", [1, 2, 3])
async def test_a_changed_policy_counts_from_the_next_request_on_however_well_the_head_is_known(
    tmp_path: Path, seen: int
) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        for _ in range(seen):
            assert (await site.ask()).status == 200
        policy.rule = DENY
        policy.revision += 1
        site.clock.advance(0.001)
        assert (await site.ask()).status == 403
        policy.rule = ALLOW
        policy.revision += 1
        site.clock.advance(0.001)
        assert (await site.ask()).status == 200
        assert len(made.requests) == seen + 1


async def test_when_its_time_is_up_and_nobody_can_decide_the_request_fails(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        for _ in range(3):
            assert (await site.ask()).status == 200
        policy.fails = True
        site.clock.advance(10)
        assert (await site.ask()).status == 500
        policy.fails = False
        assert (await site.ask()).status == 200
        assert len(made.requests) == 4


async def test_another_reason_for_the_same_verdict_stands_in_the_record_from_then_on(tmp_path: Path) -> None:
    policy = ImmediatePolicy(Decision(Verdict.ALLOW, "rule 1"))
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        await site.ask()
        policy.rule = Decision(Verdict.ALLOW, "rule 2")
        site.clock.advance(10)
        await site.ask()
        reasons = [event["annotations"]["authorization.k8s.io/reason"] for event in await site.events()]
        assert reasons == ["rule 1", "rule 2"]


@pytest.mark.parametrize(
    "difference",
    ["user", "method", "target", "host"],
)
async def test_what_is_remembered_is_for_the_same_user_and_request_line_only(tmp_path: Path, difference: str) -> None:
    policy = ImmediatePolicy(
        lambda attributes: (
            ALLOW
            if (attributes.user.username, attributes.request.verb, attributes.request.path) == ("alice", "get", "/x")
            else DENY
        )
    )
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        for _ in range(3):
            assert (await site.ask()).status == 200
        data = site.request()
        if difference == "user":
            data = data.replace(site.token.encode(), (await another_token(site, UserInfo("bob"))).encode())
        elif difference == "method":
            data = data.replace(b"GET ", b"DELETE ")
        elif difference == "target":
            data = data.replace(b"/x ", b"/y ")
        else:
            data = data.replace(b"gateway.test", b"other.test")
        expected = 200 if difference == "host" else 403
        for _ in range(3):
            assert (await site.client.ask(data)).status == expected
        assert len(made.requests) == (6 if difference == "host" else 3)


async def test_another_token_of_the_same_user_needs_no_new_decision(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        await site.ask()
        token = await another_token(site, UserInfo("alice", "7", ("dev",)))
        assert (await site.client.ask(site.request().replace(site.token.encode(), token.encode()))).status == 200
        assert len(policy.asked) == 1
        promoted = await another_token(site, UserInfo("alice", "7", ("dev", "ops")))
        assert (await site.client.ask(site.request().replace(site.token.encode(), promoted.encode()))).status == 200
        assert len(policy.asked) == 2, "with other groups it is another user"
        assert len(made.requests) == 3


async def test_a_token_that_comes_back_after_its_end_is_looked_up_although_its_head_is_known(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        for _ in range(3):
            assert (await site.ask()).status == 200
        site.clock.advance(6)
        lookups = site.store.lookups
        assert (await site.ask()).status == 200, "the revocations are confirmed anew, and the request passes"
        assert site.store.lookups == lookups + 1
        site.clock.advance(minutes=15)
        assert (await site.ask()).status == 401
        assert len(made.requests) == 4


async def test_a_request_with_a_very_long_target_is_served_and_decided_on_each_time(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), ImmediatePolicy())) as site:
        target = "/" + "x" * 2048
        for _ in range(3):
            assert (await site.ask(target)).status == 200
        assert site.count("decisions_total") == 3
        for _ in range(3):
            assert (await site.ask("/" + "x" * 2047)).status == 200
        assert site.count("decisions_total") == 4
        assert len(made.requests) == 6


# --- a seat ---


async def test_who_finds_no_seat_waits_for_one_and_is_served_then(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def held(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            await release.wait()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with upstream(held) as made:
        config = configured(tmp_path, at(made), limits={"concurrency": 1, "concurrencyPerUser": 1})
        async with serving(config) as site, connected(site.port) as second:
            site.client.send(site.request("/first"))
            await until(lambda: len(made.requests) == 1)
            second.send(site.request("/second"))
            seats = site.worker.app.shared.limits.seats
            await until(lambda: seats.queued == 1)
            assert len(made.requests) == 1
            release.set()
            assert (await site.client.answer()).status == 200
            assert (await second.answer()).status == 200
            assert [request.target for request in made.requests] == [b"/first", b"/second"]
            await until(lambda: site.seats == 0)


async def test_a_full_queue_is_told_and_who_gives_up_in_it_is_not_served(tmp_path: Path) -> None:
    async with upstream(silent) as made:
        limits = {"concurrency": 1, "concurrencyPerUser": 1, "queueLength": 1}
        async with serving(configured(tmp_path, at(made), limits=limits)) as site:
            site.client.send(site.request("/first"))
            await until(lambda: len(made.requests) == 1)
            seats = site.worker.app.shared.limits.seats
            async with connected(site.port) as second, connected(site.port) as third:
                second.send(site.request("/second"))
                await until(lambda: seats.queued == 1)
                answer = await third.ask(site.request("/third"))
                assert (answer.status, answer.one("Retry-After")) == (429, b"1")
                assert site.count("rate_limited_total", "concurrency") == 1
                ended = site.ended(answer)
                assert ended is not None
                assert (ended.reason, ended.username) == ("over the limit: concurrency", "alice")
            await until(lambda: len(site.worker._http.connections) == 1)
            await site.client.close()
            await until(lambda: site.seats == 0)
            assert [request.target for request in made.requests] == [b"/first"]


async def test_users_who_are_exempt_take_no_seat(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made))
        config = replace(
            config, limits=replace(config.limits, exempt_users=frozenset({"alice"}), requests_per_second=1)
        )
        async with serving(config) as site:
            for _ in range(150):
                assert (await site.ask()).status == 200
            assert len(made.requests) == 150
