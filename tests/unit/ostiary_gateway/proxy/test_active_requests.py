"""An exchange begins in a seat and becomes a stream when it takes long; who has no stream left keeps the seat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ostiary.model import UserInfo
from tests.support.http1 import Upstreamed, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    another_token,
    at,
    configured,
    cut,
    endless,
    kubernetes,
    opened,
    serving,
)


async def test_what_goes_on_for_longer_than_five_seconds_leaves_its_seat_to_others(tmp_path: Path) -> None:
    async with upstream(endless) as made, serving(configured(tmp_path, at(made))) as site, opened(site):
        assert (site.seats, site.streams) == (1, 0)
        await site.tick(4.9)
        assert (site.seats, site.streams) == (1, 0)
        await site.tick(0.1)
        assert (site.seats, site.streams) == (0, 1)
        await site.tick(5)
        assert (site.seats, site.streams) == (0, 1), "once"
        assert site.worker.app.engine.busy


async def test_a_stream_that_ends_gives_its_place_back(tmp_path: Path) -> None:
    async with upstream(endless) as made, serving(configured(tmp_path, at(made))) as site:
        async with opened(site):
            await site.tick(5)
            assert site.streams == 1
        await until(lambda: site.streams == 0)
        assert site.seats == 0
        assert not site.worker.app.engine.busy
        assert len(site.worker.app.engine.open_exchanges) == 0


async def test_who_has_no_stream_left_keeps_the_seat_until_one_is_free(tmp_path: Path) -> None:
    config = configured(tmp_path, "http://127.0.0.1:1", limits={"streams": 1})
    async with upstream(endless) as made:
        config = replace(config, upstreams=configured(tmp_path, at(made)).upstreams)
        async with serving(config) as site, opened(site):
            await site.tick(5)
            async with opened(site) as second:
                await site.tick(10)
                assert (site.seats, site.streams) == (1, 1)
                other = await another_token(site, UserInfo("bob"))
                async with opened(site, token=other):
                    await site.tick(5)
                    assert (site.seats, site.streams) == (1, 2), "another user has streams of their own"
                    await second.close()
                    await until(lambda: site.seats == 0)


async def test_an_answer_that_turns_out_to_be_a_stream_needs_a_stream_of_its_user(tmp_path: Path) -> None:
    async def events(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.head())
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await connection.rest()

    limits = {"streams": 1}
    async with upstream(events) as made, serving(configured(tmp_path, at(made), limits=limits)) as site, opened(site):
        assert (site.seats, site.streams) == (0, 1), "at once, and not after five seconds"
        assert (await site.ask_once()).status == 429
        await until(lambda: site.seats == 0)
        assert site.streams == 1


async def test_a_watch_that_counts_as_a_stream_already_needs_no_second_one(tmp_path: Path) -> None:
    async def events(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.head())
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await connection.rest()

    async with upstream(events) as made:
        config = configured(tmp_path, at(made), limits={"streams": 1}, upstreams=kubernetes(at(made)))
        async with serving(config) as site, opened(site, "/api/v1/pods?watch=1"):
            assert (site.seats, site.streams) == (0, 1)


async def test_everything_that_is_open_is_known_by_its_kind(tmp_path: Path) -> None:
    async with upstream(endless) as made, serving(configured(tmp_path, at(made))) as site:
        exchanges = site.worker.app.engine.open_exchanges
        async with opened(site):
            await site.tick(5)
            async with opened(site):
                assert (len(exchanges.seated), len(exchanges.streams), len(exchanges)) == (1, 1, 2)
                assert len(list(exchanges)) == 2
                assert all(exchange in exchanges for exchange in exchanges)
                assert object() not in exchanges


async def test_when_the_session_ends_so_does_what_is_open(tmp_path: Path) -> None:
    async with upstream(endless) as made, serving(configured(tmp_path, at(made))) as site, opened(site) as client:
        site.clock.advance(hours=24)
        site.worker.app.shared.authenticator.tick()
        await cut(client)
        await until(lambda: site.seats == 0 and site.streams == 0)
