"""A request in transit ends with the right to it: revocations, sessions, policies, other configurations."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.core.scopes import narrow, parse_scope
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import digest
from tests.support.http1 import connected, until
from tests.unit.ostiary_gateway.proxy.gateways import (
    DENY,
    ImmediatePolicy,
    NamelessPolicy,
    another_token,
    at,
    configured,
    cut,
    is_cut,
    kubernetes,
)
from tests.unit.ostiary_gateway.proxy.transit_scene import (
    PODS,
    UNTIL_KNOWN,
    scene,
)

# --- revocation, and the end of what the token is good for ---


async def test_a_revocation_cuts_it(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    for kind in [each for each in RevocationKind if each is not RevocationKind.ORIGIN]:
        for evicted in [False, True]:
            with subtests.test(kind=kind, evicted=evicted):
                tmp_path = tmp_path_factory.mktemp("case")
                async with scene(tmp_path) as it:
                    fast_forward = await it.begin()
                    if evicted:
                        # Others of the same user may have taken its place in memory.
                        it.gateway.worker.app.shared.authenticator.in_use.forget(fast_forward.token)
                    values = {
                        RevocationKind.TOKEN: digest(it.gateway.token).hex(),
                        RevocationKind.SESSION: fast_forward.token.session.id,
                        RevocationKind.USER: "alice",
                        RevocationKind.GROUP: "dev",
                    }
                    await it.revoke(kind, values.get(kind, ""))
                    await it.is_cut()
                    assert await it.codes() == [*([200] * UNTIL_KNOWN), 0]


async def test_a_revocation_of_another_leaves_it_alone(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        other = await another_token(it.gateway, UserInfo("bob"))
        await it.begin()
        await it.revoke(RevocationKind.TOKEN, digest(other).hex())
        assert (await it.answer()).status == 200
        it.is_over()


async def test_whoever_ends_its_token_cuts_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        fast_forward = await it.begin()
        assert it.gateway.worker.app.shared.authenticator.in_use.end(fast_forward.token) == 1
        await it.is_cut()


async def test_it_ends_with_its_session(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        fast_forward = await it.begin()
        it.gateway.clock.advance((fast_forward.token.session.expires_at - it.gateway.clock.now()).total_seconds() - 1)
        it.gateway.worker.app.shared.authenticator.tick()
        assert not is_cut(it.client)
        it.gateway.clock.advance(1)
        it.gateway.worker.app.shared.authenticator.tick()
        await it.is_cut()


async def test_with_a_narrowed_token_it_ends_with_that(tmp_path: Path) -> None:
    async with scene(tmp_path, NamelessPolicy(), upstreams=kubernetes("")) as it:
        tokens = it.gateway.worker.app.shared.tokens
        record = await tokens.find(it.gateway.token)
        assert record is not None
        scope = narrow(None, parse_scope("get pods -n shop --name web-1")).encode()
        minted = await tokens.mint(record.session, lifetime=timedelta(minutes=10), delegation=scope)
        it.gateway.token = minted.token.reveal()
        await it.begin(f"{PODS}/web-1")
        it.gateway.clock.advance(minutes=10)
        it.gateway.worker.app.shared.authenticator.tick()
        await it.is_cut()


async def test_a_narrowed_token_passes_on_nothing_that_is_not_in_its_scope(tmp_path: Path) -> None:
    async with scene(tmp_path, NamelessPolicy(), upstreams=kubernetes("")) as it:
        tokens = it.gateway.worker.app.shared.tokens
        record = await tokens.find(it.gateway.token)
        assert record is not None
        # What its owner may do is known.
        await it.begin(f"{PODS}/web-2")
        await it.answer()
        scope = narrow(None, parse_scope("get pods -n shop --name web-1")).encode()
        minted = await tokens.mint(record.session, lifetime=timedelta(minutes=10), delegation=scope)
        it.gateway.token = minted.token.reveal()
        await it.begin(f"{PODS}/web-1")
        await it.answer()
        for _ in range(UNTIL_KNOWN):
            assert (await it.gateway.ask(f"{PODS}/web-2")).status == 403


# --- the policy, and other configurations ---


async def test_a_policy_that_no_longer_allows_it_cuts_it_at_the_next_tick(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with scene(tmp_path, policy) as it:
        await it.begin()
        policy.rule = DENY
        policy.revision += 1
        await it.gateway.tick(1)
        await it.is_cut()


async def test_after_a_reload_it_is_answered_by_the_configuration_that_it_began_with(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        old = it.engine
        await it.begin()
        await it.gateway.worker.reload(it.gateway.worker.app.config)
        assert it.engine is not old
        await it.gateway.worker._retire()
        assert it.gateway.worker.retiring == 1, "it is busy"
        assert (await it.answer()).status == 200
        await it.gateway.worker._retire()
        assert it.gateway.worker.retiring == 0
        it.is_over()


async def test_a_revocation_cuts_what_is_under_way_in_each_of_several_configurations(tmp_path: Path) -> None:
    async with scene(tmp_path) as it, connected(it.gateway.port) as second:
        await it.begin()
        old, first_remote = it.engine, it.remote
        await it.gateway.worker.reload(it.gateway.worker.app.config)
        it.answering.holds = False
        for _ in range(UNTIL_KNOWN):
            assert (await it.gateway.ask_once()).status == 200
        await it.send(it.gateway.request(), client=second)
        await it.revoke(RevocationKind.USER, "alice")
        await it.is_cut(second)
        await cut(it.client)
        await until(first_remote.reader.at_eof)
        assert not old.busy


async def test_a_reload_that_does_not_allow_it_cuts_it(tmp_path: Path) -> None:
    async with scene(tmp_path, ImmediatePolicy()) as it:
        await it.begin()
        old = it.engine
        config = configured(tmp_path, at(it.made), ImmediatePolicy(DENY))
        await it.gateway.worker.reload(replace(config, store=it.gateway.worker.app.config.store))
        await it.gateway.tick(1)
        await it.is_cut()
        assert not old.busy


async def test_when_its_upstream_is_withdrawn_it_may_finish_but_not_take_long(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.begin()
        (served,) = it.gateway.worker.app.routes.upstreams
        it.engine.withdraw(served)
        assert it.engine._withdrawn == [served]
        assert (await it.answer()).status == 200
        await it.begin()
        it.engine.withdraw(served)
        await it.gateway.tick(6)
        await it.is_cut()
        assert it.engine._withdrawn == []
