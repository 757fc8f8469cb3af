"""What is open is judged again: by whom, when, and what becomes of it while nobody can say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.config.gateway_config import AuthorizationSettings, GatewayConfig
from ostiary_gateway.config.provider import Authorization
from ostiary_gateway.server.listener import bind
from ostiary_gateway.server.worker import Worker
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import Client, Upstreamed, connected, get, turn, until, upstream
from tests.unit.ostiary_gateway.proxy.test_engine import at, configured


class Remote:
    """A provider that asks somebody else, and cannot tell when they change their mind."""

    def __init__(self) -> None:
        self.asked: list[Attributes] = []
        self.fails = False
        self.refused: set[tuple[str, str]] = set()

    async def authorize(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        if self.fails:
            raise ProviderError("it cannot be asked")
        refused = (attributes.user.username, attributes.request.verb) in self.refused
        return Decision(Verdict.DENY if refused else Verdict.ALLOW)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


async def endless(connection: Upstreamed) -> None:
    connection.upstream.requests.append(await connection.head())
    connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
    await connection.rest()


class Judged:
    """A worker whose time is the test's."""

    def __init__(self, worker: Worker, port: int, clock: FakeClock, token: str) -> None:
        self.worker, self.port, self.clock, self.token = worker, port, clock, token

    def request(self, target: str = "/x", *lines: str) -> bytes:
        return get(target, f"Authorization: Bearer {self.token}", *lines)

    async def after(self, seconds: float) -> None:
        """So much time passes, a second at a time, and the ticker does its work."""
        for _ in range(int(seconds)):
            self.clock.advance(1)
            for app in (self.worker.app, *self.worker._old):
                app.engine.tick()
            await until(lambda: not any(app.engine._tasks for app in (self.worker.app, *self.worker._old)))


@asynccontextmanager
async def judged(config: GatewayConfig) -> AsyncIterator[Judged]:
    clock = FakeClock()
    config = replace(config, store=replace(config.store, instance=MemoryTokenStore(clock=clock)))
    with bind(config.listen.address) as listener:
        port = listener.getsockname()[1]
        worker = Worker(config, listener, clock=clock)
        await worker.start()
        issued = await worker.app.shared.tokens.issue(UserInfo("alice"), provider="me")
        try:
            yield Judged(worker, port, clock, issued.token.reveal())
        finally:
            await worker.close(drain=0.0)
            await turn()


def deciding(folder: Path, server: str, remote: Remote, **more: Any) -> GatewayConfig:
    config = configured(folder, server)
    chain = (Authorization("remote", "remote", remote),)
    return replace(config, authorization=AuthorizationSettings(chain, **more))


@asynccontextmanager
async def opened(site: Judged, *request: str) -> AsyncIterator[Client]:
    async with connected(site.port) as client:
        client.send(site.request(*request))
        assert (await client.head()).status == 200
        yield client


@asynccontextmanager
async def judged_by(remote: Remote, folder: Path) -> AsyncIterator[Judged]:
    async with upstream(endless) as made, judged(deciding(folder, at(made), remote)) as site:
        yield site


def is_cut(client: Client) -> bool:
    return client.reader.at_eof() or client.reader.exception() is not None


async def test_a_provider_that_cannot_tell_of_changes_is_asked_again_when_its_decision_has_lived(
    tmp_path: Path,
) -> None:
    """S44."""
    remote = Remote()
    async with judged_by(remote, tmp_path) as site, opened(site) as client:
        assert len(remote.asked) == 1
        await site.after(9)
        assert len(remote.asked) == 1
        await site.after(3)
        assert len(remote.asked) == 2
        assert not is_cut(client)
        remote.refused.add(("alice", "get"))
        await site.after(21)
        await until(lambda: is_cut(client))


async def test_equal_requests_of_one_user_are_asked_about_once(tmp_path: Path) -> None:
    remote = Remote()
    async with judged_by(remote, tmp_path) as site, opened(site), opened(site), opened(site, "/y"):
        before = len(remote.asked)
        await site.after(11)
        assert len(remote.asked) - before == 2


async def test_what_cannot_be_confirmed_goes_on_for_a_while_and_then_ends(tmp_path: Path) -> None:
    """T5, S44: could not ask is neither yes nor no."""
    remote = Remote()
    async with judged_by(remote, tmp_path) as site, opened(site) as client:
        remote.fails = True
        await site.after(60)
        assert not is_cut(client)
        remote.fails = False
        await site.after(5)
        remote.fails = True
        await site.after(59)
        assert not is_cut(client), "the time begins anew when somebody has said yes"
        await site.after(15)
        await until(lambda: is_cut(client))


@pytest.mark.parametrize("right", ["get", "impersonate"])
async def test_whoever_acts_for_another_needs_both_rights_all_the_time(tmp_path: Path, right: str) -> None:
    """S44."""
    remote = Remote()
    async with judged_by(remote, tmp_path) as site, opened(site, "/x", "Impersonate-User: bob") as client:
        await site.after(21)
        assert not is_cut(client)
        remote.refused.add(("alice" if right == "impersonate" else "bob", right))
        await site.after(21)
        await until(lambda: is_cut(client))


@pytest.mark.parametrize("change", ["another server", "no route", "the same", "refused"])
async def test_after_a_reload_the_new_configuration_judges(tmp_path: Path, change: str) -> None:
    """S44: what leads nowhere any more, or elsewhere, ends as well."""
    remote = Remote()
    async with upstream(endless) as made, upstream(endless) as other:
        config = deciding(tmp_path, at(made), remote)
        async with judged(config) as site, opened(site) as client:
            again = deciding(tmp_path, at(other if change == "another server" else made), Remote())
            again = replace(again, store=site.worker.app.config.store)
            if change == "no route":
                again = replace(again, upstreams=(replace(again.upstreams[0], prefix="/elsewhere"),))
            if change == "refused":
                instance: Any = again.authorization.chain[0].instance
                instance.refused.add(("alice", "get"))
            await site.worker.reload(again)
            if change == "the same":
                await site.after(30)
                assert not is_cut(client)
            else:
                await until(lambda: is_cut(client))
