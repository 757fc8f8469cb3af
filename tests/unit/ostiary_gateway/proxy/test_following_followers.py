"""Providers that follow an upstream: what the next configuration takes over, and what is shown of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Attributes, Decision
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Authorization
from ostiary_gateway.interfaces.upstream_capabilities import (
    FollowedFigures,
    NeededAccess,
    UpstreamFollower,
    UpstreamReader,
)
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.following import Followers, load_once, needed_access, probe
from tests.unit.ostiary_gateway.proxy.gateways import configured

ACCESS = NeededAccess(("list",), "example.com", ("things",))


class Follower:
    """Knows something once it was loaded, or has adopted one that does."""

    upstream = "k"

    def __init__(self, *, fails: bool = False, adopts: bool = True) -> None:
        self.fails, self.adopts = fails, adopts
        self.loads = 0
        self.known = False
        self.counted = FollowedFigures(1.0, 7, lists=3, changes=2, unreadable=1)

    async def follow(self, reader: UpstreamReader) -> None:
        await asyncio.Event().wait()

    async def load(self, reader: UpstreamReader) -> None:
        self.loads += 1
        if self.fails:
            raise ProviderError("no", cause="it is away", hint="wait")
        self.known = True

    async def probe(self, reader: UpstreamReader) -> str:
        return "it may"

    def adopt(self, old: UpstreamFollower) -> bool:
        self.known = self.adopts and isinstance(old, Follower) and old.known
        return self.known

    def trouble(self) -> str:
        return "" if self.known else "nothing is known"

    def figures(self) -> FollowedFigures:
        return self.counted

    def needs(self) -> NeededAccess:
        return ACCESS


class Provider:
    def __init__(self, following: Follower) -> None:
        self.following = following

    async def authorize(self, attributes: Attributes) -> Decision:
        raise AssertionError("nobody asks")

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


@pytest.fixture
def config(tmp_path: Path) -> GatewayConfig:
    return settings(tmp_path, "http://127.0.0.1:1")


def settings(folder: Path, server: str) -> GatewayConfig:
    upstreams: list[dict[str, Any]] = [{"name": "k", "server": server, "attributes": "kubernetes"}]
    return configured(folder, server, upstreams=upstreams)


def followers(config: GatewayConfig, follower: Follower) -> Followers:
    chain = [Authorization("policy", "test", Provider(follower))]
    return Followers(chain, config.upstreams, asyncio.get_running_loop())


async def test_the_same_upstream_is_taken_over_and_not_read_again(config: GatewayConfig) -> None:
    old, new = Follower(), Follower()
    old.known = True
    before, after = followers(config, old), followers(config, new)
    await after.prepare(before)
    after.adopt(before)
    assert (new.known, new.loads) == (True, 0)
    assert after.troubles() == [("policy policy", "")]
    assert after.report() == [("policy policy, confirmed 1 s ago", "")]


async def test_of_an_upstream_that_was_never_read_nothing_is_waited_for(config: GatewayConfig) -> None:
    """There is no policy to lose, and the reload may be what mends it."""
    new = Follower(fails=True)
    await followers(config, new).prepare(followers(config, Follower()))
    assert new.loads == 0


async def test_another_upstream_is_read_before_the_reload_goes_on(config: GatewayConfig, tmp_path: Path) -> None:
    old, new = Follower(), Follower()
    old.known = True
    elsewhere = settings(tmp_path, "http://127.0.0.1:2")
    before = followers(config, old)
    await followers(elsewhere, new).prepare(before)
    assert (new.known, new.loads) == (True, 1)
    with pytest.raises(ConfigurationError) as raised:
        await followers(elsewhere, Follower(fails=True)).prepare(before)
    assert "it is away" in str(raised.value.cause)
    assert raised.value.hint == "wait"


async def test_what_cannot_be_taken_over_is_read(config: GatewayConfig) -> None:
    old, new = Follower(), Follower(adopts=False)
    old.known = True
    await followers(config, new).prepare(followers(config, old))
    assert new.loads == 1


async def test_what_is_counted_never_becomes_less(config: GatewayConfig) -> None:
    metrics, follower = Metrics(), Follower()
    shown = followers(config, follower)
    shown.show_figures(metrics)
    follower.counted = FollowedFigures(None, 8, lists=4, changes=2, unreadable=1)
    shown.show_figures(metrics)
    assert metrics.policy_lists.values[("policy",)] == 4
    assert metrics.policy_objects.values[("policy",)] == 8
    # One that begins anew, after a reload.
    other = Follower()
    other.counted = FollowedFigures(0.5, 1, lists=1)
    followers(config, other).show_figures(metrics)
    assert metrics.policy_lists.values[("policy",)] == 5
    assert metrics.policy_age.values[("policy",)] == 0.5


async def test_those_who_do_not_serve_read_it_once(config: GatewayConfig) -> None:
    follower = Follower()
    chain = [Authorization("policy", "test", Provider(follower))]
    await load_once(chain, config.upstreams)
    assert follower.loads == 1
    assert await probe(follower, config.upstreams[0]) == "it may"
    assert needed_access(chain, "k") == [ACCESS]
    assert needed_access(chain, "other") == []
