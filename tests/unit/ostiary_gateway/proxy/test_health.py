"""What the health check of an upstream finds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ostiary_gateway.proxy.health import check_health
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import Upstreamed, upstream
from tests.unit.ostiary_gateway.proxy.gateways import at, configured


@pytest.mark.parametrize(
    ("status", "healthy"), [(200, True), (302, True), (399, True), (400, False), (404, False), (500, False)]
)
async def test_any_status_below_400_is_healthy(tmp_path: Path, status: int, healthy: bool) -> None:
    async def script(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.request())
        connection.send(b"HTTP/1.1 %d Whatever\r\nContent-Length: 0\r\n\r\n" % status)
        await connection.rest()

    async with upstream(script) as made:
        (settings,) = configured(tmp_path, at(made)).upstreams
        api = Upstream(settings, asyncio.get_running_loop(), FakeClock())
        assert await check_health(api, "/healthz") is healthy
        assert [request.target for request in made.requests] == [b"/healthz"]
        api.pool.close()
