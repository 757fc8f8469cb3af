"""Who serves what may change while a gateway runs: what was worked out before is then worked out anew."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from ostiary.model import RequestInfo
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.interfaces.attributes import RequestLine
from tests.support.http1 import upstream
from tests.support.proxied import HI, says
from tests.unit.ostiary_gateway.proxy.gateways import Policy, at, configured, serving


class CountingMapper:
    """Counts how often a request is looked at."""

    def __init__(self) -> None:
        self.lines = 0

    def request_info(self, line: RequestLine) -> RequestInfo:
        self.lines += 1
        return RequestInfo(line.method.lower(), line.method, line.path)

    def long_running(self, info: RequestInfo) -> bool:
        return False


def with_mapper(config: GatewayConfig, mapper: CountingMapper) -> GatewayConfig:
    (only,) = config.upstreams
    return replace(config, upstreams=(replace(only, attributes=Provider("mapper", "mapper", mapper)),))


async def test_a_known_request_is_looked_at_again_after_a_change_and_once(tmp_path: Path) -> None:
    mapper = CountingMapper()
    async with upstream(says(HI)) as made, serving(with_mapper(configured(tmp_path, at(made)), mapper)) as site:
        for _ in range(3):
            assert (await site.ask()).status == 200
        assert mapper.lines == 1
        site.worker.app.engine.forget_routes()
        for _ in range(3):
            assert (await site.ask()).status == 200
        assert mapper.lines == 2


async def test_a_change_while_the_decision_is_waited_for_counts(tmp_path: Path) -> None:
    mapper, policy = CountingMapper(), Policy()
    policy.gate.clear()
    async with upstream(says(HI)) as made, serving(with_mapper(configured(tmp_path, at(made), policy), mapper)) as site:
        first = asyncio.create_task(site.ask())
        await policy.reached.wait()
        site.worker.app.engine.forget_routes()
        policy.gate.set()
        assert (await first).status == 200
        assert mapper.lines == 1
        # What was decided on may be for a server that is gone by now: it is not used again.
        assert (await site.ask()).status == 200
        assert mapper.lines == 2
