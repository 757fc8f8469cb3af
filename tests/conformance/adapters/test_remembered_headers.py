"""Every adapter remembers the headers of the credential in force. What replaces or ends it is noticed at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest

from ostiary.errors import CredentialError
from ostiary_gateway.testing import FakeClock
from tests.conformance.adapters.contract import PODS, Driver
from tests.conformance.adapters.test_request_signing import DRIVERS
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.__name__)
def driver(request: pytest.FixtureRequest, connect_to: Connect) -> Iterator[Driver]:
    with closing(request.param(connect_to())) as driver:
        yield driver


def authorizations(api: ApiServer) -> list[list[str]]:
    return [request.headers.get_list("Authorization") for request in api.requests]


def test_an_expired_token_is_replaced_and_one_that_cannot_be_is_not_sent_again(
    driver: Driver, api: ApiServer, plugin: PluginScript, clock: FakeClock
) -> None:
    plugin.answer(token="token-1", expires_at=clock.now() + timedelta(minutes=10))
    driver.get(PODS)
    driver.get(PODS)
    plugin.answer(token="token-2", expires_at=clock.now() + timedelta(minutes=21))
    clock.advance(minutes=11)
    driver.get(PODS)
    driver.get(PODS)
    assert authorizations(api) == [["Bearer token-1"]] * 2 + [["Bearer token-2"]] * 2
    plugin.exit(1)
    clock.advance(minutes=11)
    with pytest.raises(CredentialError):
        driver.get(PODS)
    assert len(api.requests) == 4


def test_threads_go_on_while_the_token_is_replaced_and_none_sends_two(
    driver: Driver, api: ApiServer, plugin: PluginScript
) -> None:
    driver.get(PODS)

    def work(_: int) -> set[int]:
        return {driver.get(PODS).status for _ in range(5)}

    with ThreadPoolExecutor(4) as pool:
        running = pool.map(work, range(4))
        plugin.answer(token="token-2")
        api.rules.tokens = {"token-2"}
        assert set().union(*running) == {200}
    driver.get(PODS)
    assert {tuple(lines) for lines in authorizations(api)} <= {("Bearer token-1",), ("Bearer token-2",)}
    assert authorizations(api)[-1] == ["Bearer token-2"]
    assert plugin.runs == 2
