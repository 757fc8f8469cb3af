"""The connections of a user are counted for the user whose request they carried last."""

from __future__ import annotations

from pathlib import Path

from ostiary.model import UserInfo
from tests.support.http1 import connected, get, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import ALICE, another_token, at, configured, serving


async def test_who_has_too_many_connections_is_refused_on_the_next_one_which_is_closed(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), limits={"connectionsPerUser": 1})
        async with serving(config) as site:
            assert (await site.ask()).status == 200
            async with connected(site.port) as second:
                answer = await second.ask(site.request())
                assert (answer.status, answer.one("Retry-After")) == (429, b"1")
                assert await second.closed()
            assert site.count("rate_limited_total", "connections") == 1
            assert (await site.ask()).status == 200, "the first one is still good"


async def test_as_many_connections_as_are_allowed_are_served_and_one_that_ends_makes_room(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), limits={"connectionsPerUser": 2})
        async with serving(config) as site:
            assert (await site.ask()).status == 200
            share = site.worker.app.shared.limits.share(ALICE)
            for _ in range(3):
                async with connected(site.port) as second:
                    assert (await second.ask(site.request())).status == 200
                    assert (await second.ask(site.request())).status == 200
                    assert share.connections == 2
                await until(lambda: share.connections == 1)


async def test_a_connection_that_many_users_share_counts_for_the_last_of_them(tmp_path: Path) -> None:
    """As a proxy in front of the gateway has them."""
    async with upstream() as made:
        config = configured(tmp_path, at(made), limits={"connectionsPerUser": 1})
        async with serving(config) as site:
            bob = UserInfo("bob")
            as_bob = get("/x", f"Authorization: Bearer {await another_token(site, bob)}")
            limits = site.worker.app.shared.limits
            shares = limits.share(ALICE), limits.share(bob)
            assert (await site.ask()).status == 200
            assert [share.connections for share in shares] == [1, 0]
            assert (await site.client.ask(as_bob)).status == 200
            assert [share.connections for share in shares] == [0, 1]
            async with connected(site.port) as second:
                assert (await second.ask(site.request())).status == 200
                assert [share.connections for share in shares] == [1, 1]
                answer = await second.ask(as_bob)
                assert answer.status == 429, "bob has one already"
                assert await second.closed()
            await until(lambda: [share.connections for share in shares] == [0, 1])
