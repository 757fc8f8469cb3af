"""What is remembered of earlier requests: how much, for whom, and what makes it be worked out anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.model import Decision, UserInfo, Verdict
from tests.support.http1 import Upstreamed, get, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALLOW,
    DENY,
    ImmediatePolicy,
    another_token,
    at,
    configured,
    kubernetes,
    serving,
)


async def test_an_equal_request_is_planned_once(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), ImmediatePolicy())) as site:
        for _ in range(5):
            await site.ask("/x", "User-Agent: a")
        for _ in range(5):
            await site.ask("/x", "User-Agent: b")
        assert site.count("decisions_total") == 1
        assert len(site.worker.app.engine._plans) == 1
        assert {event["userAgent"] for event in await site.events()} == {"a", "b"}


async def test_a_request_line_keeps_no_more_than_eight_heads(tmp_path: Path) -> None:
    """Some clients put something new into each head."""
    async with upstream() as made, serving(configured(tmp_path, at(made), ImmediatePolicy())) as site:
        for number in range(20):
            for _ in range(2):
                assert (await site.ask("/x", f"X-Number: {number}")).status == 200
        assert len(site.worker._http.known) == 8
        assert [request.one("X-Number") for request in made.requests[::2]] == [b"%d" % number for number in range(20)]


async def test_when_a_decision_is_renewed_its_line_may_keep_new_heads(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        for number in range(9):
            for _ in range(2):
                await site.ask("/x", f"X-Number: {number}")
        before = len(site.worker._http.known)
        site.clock.advance(10)
        # After a pause the token is confirmed once, and what had to wait for that is not remembered.
        await site.ask("/y")
        for number in range(100, 120):
            for _ in range(2):
                await site.ask("/x", f"X-Number: {number}")
        assert len(site.worker._http.known) == before + 8, "as many as at first"
        assert site.count("decisions_total") == 2, "one for each path: the same decision, so nothing is planned anew"
        assert [attributes.request.path for attributes in policy.asked] == ["/x", "/y", "/x"]


async def test_a_decision_that_is_renewed_lives_as_long_as_the_first(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        for _ in range(3):
            for _ in range(3):
                assert (await site.ask()).status == 200
            site.clock.advance(9.9)
            await site.worker.app.shared.authenticator.feed.confirm()
            assert (await site.ask()).status == 200
            site.clock.advance(0.1)
            await site.worker.app.shared.authenticator.feed.confirm()
        assert len(policy.asked) == 3


async def test_a_refusal_is_remembered_like_a_permission(tmp_path: Path) -> None:
    policy = ImmediatePolicy(Decision(Verdict.NO_OPINION, "not mine"))
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        answers = [await site.ask() for _ in range(4)]
        assert {answer.status for answer in answers} == {403}
        assert len({answer.one("Audit-Id") for answer in answers}) == 4
        assert len(policy.asked) == 1
        assert site.count("decisions_total") == 1
        policy.rule = ALLOW
        site.clock.advance(10)
        assert (await site.ask()).status == 200
        assert len(made.requests) == 1


async def test_one_users_plans_evict_only_that_users_plans(tmp_path: Path) -> None:
    """Each user may keep four mebibytes of them: about two hundred with targets of two thousand bytes."""
    policy = ImmediatePolicy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        await site.ask("/mine")
        mallory = await another_token(site, UserInfo("mallory"))

        async def ask(number: int) -> None:
            target = f"/{number}/" + "x" * 2000
            assert (await site.client.ask(get(target, f"Authorization: Bearer {mallory}"))).status == 200

        for number in range(300):
            await ask(number)
        planned = site.count("decisions_total")
        await site.ask("/mine")
        await ask(299)
        assert site.count("decisions_total") == planned
        await ask(0)
        assert site.count("decisions_total") == planned + 1
    assert len(made.requests) == 304


async def test_the_plans_of_a_user_in_many_groups_take_more_room(tmp_path: Path) -> None:
    """A hundred groups of a hundred bytes: about fifty plans fit, where hundreds of an ordinary user do."""
    async with upstream() as made, serving(configured(tmp_path, at(made), ImmediatePolicy())) as site:
        grouped = UserInfo("ann", groups=tuple(f"{number:0100}" for number in range(100)))
        for user, is_kept in ((grouped, False), (UserInfo("bob"), True)):
            token = await another_token(site, user)
            for number in range(80):
                answer = await site.client.ask(get(f"/{number}", f"Authorization: Bearer {token}"))
                assert answer.status == 200
            planned = site.count("decisions_total")
            await site.client.ask(get("/0", f"Authorization: Bearer {token}"))
            assert (site.count("decisions_total") == planned) is is_kept
    assert len(made.requests) == 162


async def test_after_the_plans_are_forgotten_an_equal_request_is_planned_anew(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), ImmediatePolicy())) as site:
        for planned in (1, 2):
            # Each with another head: a head that is remembered has its plan with it.
            assert (await site.ask("/x", f"X-Number: {planned}")).status == 200
            assert site.count("decisions_total") == planned
            site.worker.app.engine.forget_plans()


@pytest.mark.parametrize("blocking", [False, True])
async def test_what_reviews_no_token_is_sent_on_before_its_body_is_there(tmp_path: Path, blocking: bool) -> None:
    """Also where its receipt must be recorded first."""

    async def answers_at_once(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.head())
        await connection.rest()

    async with upstream(answers_at_once) as made:
        audit = {"blocking": blocking, "log": {"path": "audit.log"}}
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)), audit=audit)
        async with serving(config) as site:
            site.client.send(site.request("/api/v1/namespaces/x/pods", method="POST", body=b"12")[:-1])
            await until(lambda: bool(made.requests))


async def test_a_target_of_more_than_two_kibibytes_is_not_remembered(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), ImmediatePolicy())) as site:
        for size, planned in ((2048, 1), (2049, 3)):
            for number in range(2):
                assert (await site.ask("/".ljust(size, "x"), f"X-Number: {number}")).status == 200
            assert site.count("decisions_total") == planned


async def test_a_changed_policy_counts_a_thousandth_of_a_second_later(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        for _ in range(3):
            assert (await site.ask()).status == 200
        policy.rule, policy.revision = DENY, 2
        site.clock.advance(0.001)
        assert (await site.ask()).status == 403
