"""Runs a worker in this process, alone or under a supervisor: starts it, and reloads and stops it on signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.service_manager import ServiceManager
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.providers import close_all
from ostiary_gateway.observability.snapshots import Snapshot
from ostiary_gateway.replicas.replica import Replica, replica_from_json
from ostiary_gateway.replicas.worker_ipc import (
    CONFIGURATION,
    CONFIGURATION_SECONDS,
    LONGEST_LINE,
    NOT_RELOADED,
    SERVING,
    TICKET_KEYS,
    Channel,
    WorkersBySupervisor,
)
from ostiary_gateway.server.config_source import ConfigSource
from ostiary_gateway.server.health import Health, HealthReport
from ostiary_gateway.server.listener import Listeners
from ostiary_gateway.server.replica_state import OWN
from ostiary_gateway.server.signals import StopRequest, handle_signals
from ostiary_gateway.server.ticket_keys import TicketKeys
from ostiary_gateway.server.worker import Worker

log = logging.getLogger("ostiary.gateway")

# Thresholds of the garbage collector, which pauses all requests. It scans the youngest generation after this many new
# objects, the next one every second time, and everything after about a million objects. Frequent short collections take
# no longer in total than rare long ones, and each is done within milliseconds.
COLLECT_AFTER, COLLECT_AGAIN_AFTER, COLLECT_ALL_AFTER = 2_500, 1, 200


async def serve_alone(
    source: ConfigSource,
    config: GatewayConfig,
    listeners: Listeners,
    health: socket.socket,
    service: ServiceManager,
) -> None:
    async def fetch() -> ConfigSource:
        return source.at_this_moment()

    worker, stop = await _start_worker(
        source, config, listeners, lambda worker: _reload_as_service(worker, fetch, service)
    )

    async def reports() -> Sequence[HealthReport]:
        return [await worker.report()]

    async def snapshots() -> Sequence[Snapshot]:
        return [worker.snapshot()]

    probes = Health(reports, snapshots)
    server = await asyncio.get_running_loop().create_server(probes.connection, sock=health.dup())
    service.tell_started()
    await stop.asked.wait()
    service.tell_stopping(worker.app.config.listen.longest_stop)
    await _stop_worker(worker, stop)
    server.close()
    probes.close()


async def serve_for_supervisor(
    source: ConfigSource, listeners: Listeners, channel: socket.socket, on_config: Callable[[GatewayConfig], None]
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
    ticket_keys = TicketKeys.from_json(await to_supervisor.ask(TICKET_KEYS), SYSTEM_CLOCK)
    worker, stop = await _start_worker(
        source, config, listeners, lambda worker: _reload(worker, fetch), supervised=True, ticket_keys=ticket_keys
    )
    to_supervisor.answer_by(worker.answer)

    async def own_replica() -> Replica | None:
        return replica_from_json(await to_supervisor.ask(OWN))

    worker.join(WorkersBySupervisor(to_supervisor), own_replica)
    to_supervisor.tell(SERVING, None)
    # Without the supervisor no process would ever stop this worker.
    answering.add_done_callback(lambda _: stop())
    await stop.asked.wait()
    await _stop_worker(worker, stop)
    answering.cancel()


async def _answer_nothing(question: str, data: object) -> None:
    """Ignore messages: a worker that is still starting cannot handle them."""


# Fetches the configuration for a reload.
Fetch = Callable[[], Awaitable[ConfigSource]]


Reload = Callable[[Worker], Coroutine[object, object, object]]


async def _start_worker(
    source: ConfigSource,
    config: GatewayConfig,
    listeners: Listeners,
    reload: Reload,
    *,
    supervised: bool = False,
    ticket_keys: TicketKeys | None = None,
) -> tuple[Worker, StopRequest]:
    worker = Worker(
        config,
        listeners.requests,
        counts=source.counts,
        supervised=supervised,
        grpc_listener=listeners.grpc,
        agents=listeners.agents,
        ticket_keys=ticket_keys,
    )
    stop = StopRequest()
    handle_signals(stop, lambda: reload(worker))
    await worker.start()
    tune_garbage_collector()
    return worker, stop


def tune_garbage_collector() -> None:
    """Make the garbage collector run rarely, and never over what was loaded at the start.

    A request leaves no cycles behind. With the default thresholds the collector would scan hundreds of thousands of
    objects (policies, tokens, plans) whenever many requests arrive together, and all would wait. The few cycles created
    so far stay in memory: finding them takes a tenth of the whole start.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, COLLECT_AGAIN_AFTER, COLLECT_ALL_AFTER)
    gc.enable()


async def _stop_worker(worker: Worker, stop: StopRequest) -> None:
    stopping = asyncio.ensure_future(worker.stop())
    hurrying = asyncio.ensure_future(stop.hurry.wait())
    await asyncio.wait((stopping, hurrying), return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    if not stopping.done():
        stopping.cancel()
        with suppress(asyncio.CancelledError):
            await stopping
        await worker.close(drain=0.0)


async def _reload_as_service(worker: Worker, fetch: Fetch, service: ServiceManager) -> None:
    trouble = NOT_RELOADED
    service.tell_reloading()
    try:
        trouble = await _reload(worker, fetch)
    finally:
        # Always: systemd waits for it.
        service.tell_reloaded(trouble)


async def _reload(worker: Worker, fetch: Fetch) -> str:
    """Load the current configuration. Return the error, or an empty string."""
    providers: list[object] = []
    try:
        source = await fetch()
        await worker.reload(source.load(providers))
    except OstiaryError as error:
        log.error(NOT_RELOADED, extra={"cause": str(error)})
        await close_all(providers)
        return NOT_RELOADED
    return ""
