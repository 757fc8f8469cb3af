"""When an API plugin is served: it must be well, and the upstream must not serve its group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ostiary_gateway.proxy.api_plugin import ApiPlugin
from ostiary_gateway.proxy.api_plugin_watch import CONFLICT, MOST_FAILURES, NOT_ASKED_BESIDE, WatchedPlugin
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import Upstreamed, upstream
from tests.unit.ostiary_gateway.proxy.gateways import at, configured, kubernetes

GROUP = "builds.example.com"
RESOURCES = {
    "kind": "APIResourceList",
    "groupVersion": f"{GROUP}/v1",
    "resources": [{"name": "builds", "singularName": "build", "namespaced": True, "kind": "Build", "verbs": ["get"]}],
}


class World:
    """A plugin, and the upstream beside it. The test sets the status of their answers."""

    def __init__(self) -> None:
        self.plugin_status, self.beside_status = 200, 404
        self.changes = 0
        self.watched: WatchedPlugin

    async def plugin(self, connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            is_list = request.target == f"/apis/{GROUP}/v1".encode()
            self._answer(connection, self.plugin_status if is_list else 404, json.dumps(RESOURCES).encode())

    async def beside(self, connection: Upstreamed) -> None:
        while True:
            await connection.request()
            self._answer(connection, self.beside_status, b"{}")

    def note_change(self) -> None:
        self.changes += 1

    def _answer(self, connection: Upstreamed, status: int, body: bytes) -> None:
        connection.send(b"HTTP/1.1 %d Whatever\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[World]:
    world = World()
    async with upstream(world.plugin) as plugin, upstream(world.beside) as beside:
        places = []
        for made in (plugin, beside):
            (settings,) = configured(folder, at(made), upstreams=kubernetes(at(made))).upstreams
            places.append(Upstream(settings, asyncio.get_running_loop(), FakeClock()))
        about = ApiPlugin("k", GROUP, ("v1",), at(plugin))
        world.watched = WatchedPlugin(about, *places, on_change=world.note_change)
        yield world
        for place in places:
            place.pool.close()


async def test_a_plugin_that_is_well_is_served_with_what_it_lists(tmp_path: Path) -> None:
    async with watching(tmp_path) as world:
        watched = world.watched
        assert not watched.is_available
        await watched.check()
        assert (watched.is_available, watched.group.is_fresh, world.changes) == (True, True, 1)
        (version,) = watched.group.versions
        assert [resource.name for resource in version.resources] == ["builds"]


async def test_after_one_failure_it_is_served_from_what_is_known_and_after_more_not_at_all(tmp_path: Path) -> None:
    async with watching(tmp_path) as world:
        watched = world.watched
        await watched.check()
        world.plugin_status = 500
        for number in range(1, MOST_FAILURES + 1):
            await watched.check()
            assert watched.is_available is (number < MOST_FAILURES)
            assert not watched.group.is_fresh
            assert [resource.name for resource in watched.group.versions[0].resources] == ["builds"]
        assert watched.trouble == f"it answered 500 at /apis/{GROUP}/v1"
        world.plugin_status = 200
        await watched.check()
        assert (watched.is_available, watched.group.is_fresh, world.changes) == (True, True, 3)


@pytest.mark.parametrize(("status", "trouble"), [(200, CONFLICT), (403, NOT_ASKED_BESIDE), (404, "")])
async def test_the_upstream_must_have_said_that_it_does_not_serve_the_group(
    tmp_path: Path, status: int, trouble: str
) -> None:
    async with watching(tmp_path) as world:
        world.beside_status = status
        await world.watched.check()
        assert (world.watched.trouble, world.watched.has_conflict) == (trouble, status == 200)


class Ended(Exception):
    """The test has seen enough."""


async def pauses(world: World, monkeypatch: pytest.MonkeyPatch, count: int) -> list[float]:
    """How long the watch waits after each of so many checks."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == count:
            raise Ended

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", wait)
        with pytest.raises(Ended):
            await world.watched.run()
    return waited


async def test_a_plugin_that_is_not_served_is_looked_at_soon_and_then_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as world:
        assert await pauses(world, monkeypatch, 2) == [5, 5]
        world.plugin_status = 500
        # The first failure does not make it unavailable.
        assert await pauses(world, monkeypatch, 4) == [1, 2, 4, 5]
        world.plugin_status = 200
        assert await pauses(world, monkeypatch, 1) == [5]
        world.plugin_status = 500
        assert await pauses(world, monkeypatch, 2) == [1, 2]
