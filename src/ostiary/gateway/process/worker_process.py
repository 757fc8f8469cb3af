"""Runs a worker in this process, alone or for a supervisor: starts it, reloads and stops it on signals.

Called by `serve`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.gateway.config.providers import close_all
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.observe.snapshots import Snapshot
from ostiary.gateway.process.config_source import ConfigSource
from ostiary.gateway.process.health import Health, HealthReport
from ostiary.gateway.process.signals import StopRequest, handle_signals
from ostiary.gateway.process.worker import Worker
from ostiary.gateway.siblings.channel import LONGEST_LINE, Channel, SiblingsBySupervisor

log = logging.getLogger("ostiary.gateway")

COLLECT_AFTER = 10_000
# What a worker asks its supervisor for, and how long that may take on a machine that is busy starting workers.
CONFIGURATION = "configuration"
CONFIGURATION_SECONDS = 60.0


async def serve_alone(
    source: ConfigSource, config: GatewayConfig, listener: socket.socket, health: socket.socket
) -> None:
    async def fetch() -> ConfigSource:
        return source.at_this_moment()

    worker, stop = await _start_worker(source, config, listener, fetch)

    async def reports() -> Sequence[HealthReport]:
        return [await worker.report()]

    async def snapshots() -> Sequence[Snapshot]:
        return [worker.snapshot()]

    probes = Health(reports, snapshots)
    server = await asyncio.get_running_loop().create_server(probes.connection, sock=health.dup())
    await stop.asked.wait()
    await _stop_worker(worker, stop)
    server.close()
    probes.close()


async def serve_for_supervisor(
    source: ConfigSource, listener: socket.socket, channel: socket.socket, on_config: Callable[[GatewayConfig], None]
) -> None:
    reader, writer = await asyncio.open_connection(sock=channel, limit=LONGEST_LINE)
    to_supervisor = Channel(reader, writer, _answer_nothing)
    answering = asyncio.get_running_loop().create_task(to_supervisor.run())

    async def fetch() -> ConfigSource:
        text = await to_supervisor.ask(CONFIGURATION, seconds=CONFIGURATION_SECONDS)
        if text is None and source.path is not None:
            raise ConfigurationError("the configuration cannot be read", cause="the supervisor does not answer")
        return replace(source, text=cast("str | None", text))

    config = (await fetch()).load()
    on_config(config)
    worker, stop = await _start_worker(source, config, listener, fetch)
    to_supervisor.answer_by(worker.answer)
    worker.join(SiblingsBySupervisor(to_supervisor))
    # When the supervisor is gone, nobody would ever stop this worker.
    answering.add_done_callback(lambda _: stop())
    await stop.asked.wait()
    await _stop_worker(worker, stop)
    answering.cancel()


async def _answer_nothing(question: str, data: object) -> None:
    """A worker that is still starting has nothing to answer."""


# Fetches the configuration for a reload.
Fetch = Callable[[], Awaitable[ConfigSource]]


async def _start_worker(
    source: ConfigSource, config: GatewayConfig, listener: socket.socket, fetch: Fetch
) -> tuple[Worker, StopRequest]:
    worker, stop = Worker(config, listener, counts=source.counts), StopRequest()
    handle_signals(stop, lambda: _reload(worker, fetch))
    await worker.start()
    # What was made until now stays: the garbage collector need not look at it again, and need not run often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 10)
    return worker, stop


async def _stop_worker(worker: Worker, stop: StopRequest) -> None:
    stopping = asyncio.ensure_future(worker.stop())
    hurrying = asyncio.ensure_future(stop.hurry.wait())
    await asyncio.wait((stopping, hurrying), return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    if not stopping.done():
        stopping.cancel()
        with suppress(asyncio.CancelledError):
            await stopping
        await worker.stop(drain=0.0)


async def _reload(worker: Worker, fetch: Fetch) -> None:
    providers: list[object] = []
    try:
        source = await fetch()
        await worker.reload(source.load(providers))
    except OstiaryError as error:
        log.error("the configuration was not reloaded", extra={"cause": str(error)})
        await close_all(providers)
