"""What the supervisor keeps for workers that start late."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from ostiary.core.service_manager import ServiceManager
from ostiary_gateway.config import loads
from ostiary_gateway.server import supervisor
from ostiary_gateway.server.config_source import ConfigSource
from ostiary_gateway.server.listener import Listeners
from ostiary_gateway.server.ticket_keys import PERIOD_SECONDS, TicketKeys
from ostiary_gateway.testing import FakeClock

CONFIG = """
apiVersion: ostiary.dev/v1
kind: Gateway
store: {type: memory}
identity: [{name: me, type: single_user}]
authorization: {chain: [{name: everything, type: allow_all}]}
upstreams: [{name: here, server: "http://127.0.0.1:1"}]
"""


async def test_the_ticket_keys_of_the_first_day_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """All later ones can be computed from them, and so whatever was recorded since be read."""
    clock = FakeClock()
    monkeypatch.setattr(supervisor, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(supervisor, "RESTART_SECONDS", 0.001)
    with socket.socket() as main, socket.socket() as health:
        supervising = supervisor.Supervisor(
            ConfigSource(), loads(CONFIG, name="test"), Listeners(main), health, ServiceManager()
        )
        kept: TicketKeys = supervising._ticket_keys
        first = repr(kept)
        clock.advance(PERIOD_SECONDS)
        watching = asyncio.create_task(supervising._replace_dead_workers())
        async with asyncio.timeout(30):
            while repr(kept) == first:  # what happens is in another task, and tells nobody
                await asyncio.sleep(0.001)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
