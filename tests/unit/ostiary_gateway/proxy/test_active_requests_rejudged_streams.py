"""Whatever is open is judged again: allowed to denied cuts it, a provider that is down does not, for a while."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.config.provider import Authorization
from tests.support.http1 import turn, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALLOW,
    DENY,
    ImmediatePolicy,
    Policy,
    another_token,
    at,
    configured,
    cut,
    endless,
    is_cut,
    kubernetes,
    opened,
    serving,
)


@pytest.mark.parametrize("long", [False, True])
async def test_a_policy_that_changes_is_noticed_at_the_next_tick(
    tmp_path: Path, long: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Both what still has a seat and what has become a stream."""
    caplog.set_level(logging.INFO, "ostiary.gateway")
    policy = ImmediatePolicy()
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), policy)
        async with serving(config) as site, opened(site) as client, opened(site, "/other") as other:
            await site.tick(6 if long else 0)
            policy.rule = lambda attributes: DENY if attributes.request.path == "/x" else ALLOW
            await site.tick(1)
            assert not is_cut(client), "nobody has said that it changed"
            policy.revision += 1
            await site.tick(1)
            await cut(client)
            assert not is_cut(other)
            await until(lambda: site.seats + site.streams == 1)
    messages = [record.getMessage() for record in caplog.records if "a stream was cut" in record.getMessage()]
    assert messages == ["a stream was cut: the policy no longer allows it"]


async def test_a_watch_is_judged_again_from_its_beginning(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), policy, upstreams=kubernetes(at(made)))
        async with serving(config) as site, opened(site, "/api/v1/pods?watch=1") as client:
            assert (site.seats, site.streams) == (0, 1)
            assert len(site.worker.app.engine.open_exchanges) == 1
            policy.rule = DENY
            policy.revision += 1
            await site.tick(1)
            await cut(client)
            await until(lambda: site.streams == 0)


async def test_a_provider_that_cannot_tell_of_changes_is_asked_again_after_ten_seconds(tmp_path: Path) -> None:
    policy = Policy()
    async with (
        upstream(endless) as made,
        serving(configured(tmp_path, at(made), policy)) as site,
        opened(site) as client,
    ):
        policy.rule = DENY
        await site.tick(9)
        assert len(policy.asked) == 1
        await site.tick(1)
        assert len(policy.asked) == 2
        await cut(client)


@pytest.mark.parametrize(("ttl", "asked_after"), [(3, 3), (0.2, 1), (60, 60)])
async def test_it_is_asked_as_often_as_decisions_live_but_not_more_than_once_a_second(
    tmp_path: Path, ttl: float, asked_after: int
) -> None:
    policy = Policy()
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), policy)
        config = replace(config, authorization=replace(config.authorization, cache_ttl=timedelta(seconds=ttl)))
        async with serving(config) as site, opened(site):
            before = len(policy.asked)
            await site.tick(asked_after - 1)
            assert len(policy.asked) == before
            await site.tick(1)
            assert len(policy.asked) == before + 1


async def test_while_the_provider_is_down_a_stream_goes_on_for_a_minute_and_is_asked_about_every_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    policy = Policy()
    async with (
        upstream(endless) as made,
        serving(configured(tmp_path, at(made), policy)) as site,
        opened(site) as client,
    ):
        policy.fails = True
        await site.tick(10)
        asked = len(policy.asked)
        await site.tick(30)
        assert len(policy.asked) >= asked + 30
        await site.tick(29)
        assert not is_cut(client)
        await site.tick(1)
        await cut(client)
    (message,) = [record.getMessage() for record in caplog.records if "a stream was cut" in record.getMessage()]
    assert message.startswith("a stream was cut: it could not be confirmed in time that it is still allowed: ")
    assert "connection refused" in message


async def test_while_the_provider_is_down_it_is_not_asked_more_than_once_a_second(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream(endless) as made, serving(configured(tmp_path, at(made), policy)) as site, opened(site):
        policy.fails = True
        await site.tick(10)
        asked = len(policy.asked)
        await site.tick(0.5)
        assert len(policy.asked) == asked
        await site.tick(0.5)
        assert len(policy.asked) > asked


@pytest.mark.parametrize("right", ["get", "impersonate"])
async def test_whoever_acts_for_another_needs_both_rights_of_a_policy_that_decides_at_once(
    tmp_path: Path, right: str
) -> None:
    policy = ImmediatePolicy()
    async with (
        upstream(endless) as made,
        serving(configured(tmp_path, at(made), policy)) as site,
        opened(site, "/x", "Impersonate-User: bob") as client,
        opened(site) as own,
    ):
        policy.revision += 1
        await site.tick(1)
        assert not is_cut(client)
        who = "bob" if right == "get" else "alice"
        policy.rule = lambda asked: DENY if (asked.user.username, asked.request.verb) == (who, right) else ALLOW
        policy.revision += 1
        await site.tick(1)
        await cut(client)
        assert not is_cut(own)


async def test_the_time_begins_anew_when_somebody_has_said_yes(tmp_path: Path) -> None:
    policy = Policy()
    async with (
        upstream(endless) as made,
        serving(configured(tmp_path, at(made), policy)) as site,
        opened(site) as client,
    ):
        for _ in range(2):
            policy.fails = True
            await site.tick(60)
            assert not is_cut(client)
            policy.fails = False
            await site.tick(2)
        policy.rule = DENY
        await site.tick(11)
        await cut(client)


async def test_one_stream_that_cannot_be_confirmed_does_not_end_another(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), policy)
        async with serving(config) as site, opened(site) as old:
            policy.fails = True
            await site.tick(40)
            policy.fails = False
            async with opened(site, "/young") as young:
                policy.fails = True
                await site.tick(30)
                await cut(old)
                assert not is_cut(young)


async def test_equal_requests_of_one_user_are_asked_about_once_and_cut_together(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream(endless) as made, serving(configured(tmp_path, at(made), policy)) as site:
        bob = await another_token(site, UserInfo("bob"))
        async with opened(site) as first, opened(site) as second, opened(site, token=bob) as other:
            before = len(policy.asked)
            policy.rule = lambda attributes: DENY if attributes.user.username == "alice" else ALLOW
            await site.tick(10)
            assert len(policy.asked) == before + 2
            await cut(first)
            await cut(second)
            assert not is_cut(other)


async def test_another_reason_for_the_same_verdict_keeps_the_stream_open(tmp_path: Path) -> None:
    policy = ImmediatePolicy(Decision(Verdict.ALLOW, "rule 1"))
    async with upstream(endless) as made, serving(configured(tmp_path, at(made), policy)) as site:
        async with opened(site) as client:
            policy.rule = Decision(Verdict.ALLOW, "rule 2")
            policy.revision += 1
            await site.tick(2)
            assert not is_cut(client)
            policy.rule = DENY
            policy.revision += 1
            await site.tick(1)
            await cut(client)
        await until(lambda: site.seats == 0)
        (event,) = await site.events()
        assert event["annotations"]["authorization.k8s.io/reason"] in ("rule 1", "rule 2")


@pytest.mark.parametrize("kind", [ImmediatePolicy, Policy])
async def test_many_plans_are_judged_in_one_go(tmp_path: Path, kind: type[Policy]) -> None:
    """More than are judged in one turn of the loop, and more than are asked about at once."""
    policy = kind()
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), policy)
        async with serving(config) as site, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(opened(site, f"/{number}")) for number in range(70)]
            policy.rule = DENY
            await site.tick(11)
            for client in clients:
                await cut(client)


async def test_others_get_their_turn_while_many_plans_are_judged(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with (
        upstream(endless) as made,
        serving(configured(tmp_path, at(made), policy)) as site,
        AsyncExitStack() as stack,
    ):
        for number in range(70):
            await stack.enter_async_context(opened(site, f"/{number}"))
        turns = 0
        judged_in: list[int] = []

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def rule(attributes: Attributes) -> Decision:
            judged_in.append(turns)
            return ALLOW

        policy.rule = rule
        policy.revision += 1
        counting = asyncio.create_task(count_turns())
        await site.tick(1)
        await until(lambda: len(judged_in) == 70)
        counting.cancel()
        batches = Counter(judged_in)
        assert len(batches) <= 3
        assert max(batches.values()) <= 50


async def test_when_nothing_is_open_nobody_is_asked(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        await site.ask()
        await site.tick(30)
        assert len(policy.asked) == 1


async def test_a_policy_that_changes_again_while_it_is_asked_is_asked_once_more(tmp_path: Path) -> None:
    class Revised(Policy):
        revision = 1

    policy = Revised()
    async with (
        upstream(endless) as made,
        serving(configured(tmp_path, at(made), policy)) as site,
        opened(site) as client,
    ):
        policy.gate.clear()
        policy.reached.clear()
        policy.revision = 2
        await site.tick(1)
        await policy.reached.wait()
        policy.revision = 3
        await site.tick(1)
        policy.gate.set()
        await turn(20)
        assert not is_cut(client)
        policy.rule = DENY
        policy.revision = 4
        await site.tick(1)
        await cut(client)


# --- after a reload ---


async def test_the_new_configuration_judges_what_was_opened_under_the_old_one(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    cases = [
        ("nothing", False),
        ("the policy", True),
        ("the server", True),
        ("the prefix", True),
        ("another setting of the upstream", False),
        ("the policy, and it cannot be asked", False),
    ]
    for change, ends in cases:
        with subtests.test(change=change, ends=ends):
            tmp_path = tmp_path_factory.mktemp("case")
            caplog.clear()
            caplog.set_level(logging.INFO, "ostiary.gateway")
            async with upstream(endless) as made, upstream(endless) as other:
                first = configured(tmp_path, at(made), Policy())
                async with serving(first) as site, opened(site) as client:
                    config = site.worker.app.config
                    (api,) = config.upstreams
                    if change.startswith("the policy"):
                        policy = Policy(DENY)
                        policy.fails = "cannot be asked" in change
                        chain = (Authorization("policy", "policy", policy),)
                        config = replace(config, authorization=replace(config.authorization, chain=chain))
                    elif change == "the server":
                        config = replace(config, upstreams=configured(tmp_path, at(other)).upstreams)
                    elif change == "the prefix":
                        config = replace(config, upstreams=(replace(api, prefix="/elsewhere"),))
                    elif change == "another setting of the upstream":
                        upstreams = [{"name": "renamed", "server": at(made), "identity": "none", "attributes": "http"}]
                        config = replace(
                            config, upstreams=configured(tmp_path, at(made), upstreams=upstreams).upstreams
                        )
                    await site.worker.reload(config)
                    if ends:
                        await cut(client)
                    else:
                        await site.tick(30)
                        assert not is_cut(client)
            messages = [record.getMessage() for record in caplog.records if "a stream was cut" in record.getMessage()]
            expected = {"the policy": "the policy no longer allows it"}.get(
                change, "the configuration no longer has it"
            )
            assert messages == ([f"a stream was cut: {expected}"] if ends else [])


async def test_what_the_configuration_no_longer_has_does_not_keep_the_rest_from_being_judged(tmp_path: Path) -> None:
    async with (
        upstream(endless) as made,
        serving(configured(tmp_path, at(made), Policy())) as site,
        opened(site, "/gone") as gone,
        opened(site, "/kept/refused") as refused,
        opened(site, "/kept/allowed") as allowed,
    ):
        policy = ImmediatePolicy(lambda asked: DENY if asked.request.path.endswith("/refused") else ALLOW)
        upstreams = [{"name": "api", "server": at(made), "prefix": "/kept", "identity": "none", "attributes": "http"}]
        config = configured(tmp_path, at(made), policy, upstreams=upstreams)
        await site.worker.reload(replace(config, store=site.worker.app.config.store))
        await cut(gone)
        await cut(refused)
        assert not is_cut(allowed)


async def test_after_a_reload_a_watch_is_read_as_the_new_configuration_reads_it(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream(endless) as made:
        first = configured(tmp_path, at(made), policy)
        async with serving(first) as site, opened(site, "/api/v1/pods?watch=1"):
            assert policy.asked[-1].request.verb == "get"
            again = Policy()
            config = configured(tmp_path, at(made), again, upstreams=kubernetes(at(made)))
            await site.worker.reload(replace(config, store=site.worker.app.config.store))
            await until(lambda: bool(again.asked))
            assert (again.asked[-1].request.verb, again.asked[-1].request.resource) == ("watch", "pods")


async def test_what_has_ended_while_nobody_could_be_asked_is_not_kept(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream(endless) as made, serving(configured(tmp_path, at(made), policy)) as site, opened(site, "/y"):
        reauthorize = site.worker.app.engine._rejudge
        async with opened(site):
            policy.fails = True
            await site.tick(21)
            await until(lambda: len(reauthorize._unconfirmed_since) == 2)
        await until(lambda: len(site.worker.app.engine.open_exchanges) == 1)
        await site.tick(21)
        await until(lambda: len(reauthorize._unconfirmed_since) == 1)


async def test_a_slow_provider_is_asked_one_question_at_a_time_however_often_its_policy_changes(
    tmp_path: Path,
) -> None:
    class Revised(Policy):
        revision = 1

    policy = Revised()
    async with upstream(endless) as made, serving(configured(tmp_path, at(made), policy)) as site, opened(site):
        assert len(policy.asked) == 1
        policy.gate.clear()
        for revision in range(2, 6):
            policy.revision = revision
            await site.tick(1)
            assert len(policy.asked) == 2, "the first question has not been answered yet"
        policy.gate.set()
        await until(lambda: not site.worker.app.engine._rejudge._is_running)
        assert len(policy.asked) == 3, "once more, for all that has changed meanwhile"


async def test_what_was_cut_because_nobody_could_confirm_it_is_not_kept(tmp_path: Path) -> None:
    policy = Policy()
    async with (
        upstream(endless) as made,
        serving(configured(tmp_path, at(made), policy)) as site,
        opened(site) as client,
    ):
        reauthorize = site.worker.app.engine._rejudge
        policy.fails = True
        await site.tick(10)
        await until(lambda: len(reauthorize._unconfirmed_since) == 1)
        await site.tick(60)
        await cut(client)
        await until(lambda: not site.worker.app.engine.busy)
        assert not reauthorize._unconfirmed_since, "also if nothing is opened after it"


async def test_decisions_that_live_for_less_than_a_second_are_asked_for_once_a_second(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), policy)
        config = replace(config, authorization=replace(config.authorization, cache_ttl=timedelta(seconds=0.2)))
        async with serving(config) as site, opened(site):
            before = len(policy.asked)
            await site.tick(0.5)
            assert len(policy.asked) == before
            await site.tick(0.5)
            assert len(policy.asked) == before + 1


async def test_each_record_has_the_reason_that_counted_when_its_stream_was_opened(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream(endless) as made, serving(configured(tmp_path, at(made), policy)) as site:
        async with opened(site):
            policy.rule = Decision(Verdict.ALLOW, "for another reason")
            policy.revision += 1
            await site.tick(1)
            async with opened(site):
                pass
            await until(lambda: len(site.worker.app.engine.open_exchanges) == 1)
        await until(lambda: not site.worker.app.engine.busy)
        reasons = [event["annotations"]["authorization.k8s.io/reason"] for event in await site.events()]
        assert reasons == ["for another reason", "because"]
