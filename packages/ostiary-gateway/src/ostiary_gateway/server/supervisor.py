"""The supervisor: starts the workers on one port, replaces those that die, and relays signals and messages to them.

Each worker is a process with the listening sockets, a channel to the supervisor, and the shared memory for counters.
The supervisor serves health and metrics for all of them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import cast

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.process import ChildProcess, start_child
from ostiary.core.service_manager import ServiceManager
from ostiary.errors import OstiaryError
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.providers import close_all
from ostiary_gateway.config.reload import check_reloadable
from ostiary_gateway.limits.counts import MachineCounts
from ostiary_gateway.observability.snapshots import Snapshot
from ostiary_gateway.replicas import worker_ipc as ipc
from ostiary_gateway.replicas.drift import SeenReplica
from ostiary_gateway.replicas.owner import CONFIRMING_OWNER, guard
from ostiary_gateway.replicas.registry import ReplicaRegistry
from ostiary_gateway.replicas.replica import ReplicaIdentity
from ostiary_gateway.replicas.worker_ipc import LONGEST_LINE, Channel
from ostiary_gateway.replicas.workers import WorkerState
from ostiary_gateway.server import replica_state
from ostiary_gateway.server.background import BackgroundTasks
from ostiary_gateway.server.config_source import ConfigSource
from ostiary_gateway.server.haproxy_listener import agent_addresses, check_agents, close_unnamed
from ostiary_gateway.server.health import Health, HealthReport
from ostiary_gateway.server.listener import Listeners
from ostiary_gateway.server.replica_state import PUBLISHING, seen_json
from ostiary_gateway.server.signals import StopRequest, handle_signals
from ostiary_gateway.server.ticket_keys import TicketKeys

log = logging.getLogger("ostiary.gateway")

RESTART_SECONDS = 1.0
LONGEST_PAUSE = 30.0


@dataclass(slots=True)
class WorkerProcess:
    process: ChildProcess
    channel: Channel
    listening: asyncio.Task[None]
    serving: bool = False


class Supervisor:
    """Parent process of the workers: starts, replaces, reloads and stops them."""

    def __init__(
        self,
        source: ConfigSource,
        config: GatewayConfig,
        listeners: Listeners,
        health: socket.socket,
        service: ServiceManager,
    ) -> None:
        self._source = source
        # What every worker loads, including a replacement: the file itself may be invalid by then.
        self._accepted = source
        self._config = config
        self._listeners = listeners
        self._health = health
        self._service = service
        self._workers: list[WorkerProcess] = []
        self._stop = StopRequest()
        # Memory that all workers share, for common counters.
        self._counts = MachineCounts.create()
        self._ticket_keys = TicketKeys.create(SYSTEM_CLOCK)
        # The workers each guard their own access. The supervisor must not write to another gateway's store either.
        self._store, self._owner = guard(config.store.instance, config.owner)
        self._registry = ReplicaRegistry(
            ReplicaIdentity.of_this_process(),
            self._store,
            self._states,
            clock=SYSTEM_CLOCK,
            max_stale=config.tokens.max_stale.total_seconds(),
            on_seen=self._tell_seen,
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        handle_signals(self._stop, self._reload)
        for _ in range(self._config.listen.workers):
            await self._start_worker()
        probes = Health(self._reports, self._snapshots)
        server = await loop.create_server(probes.connection, sock=self._health.dup())
        replacing = loop.create_task(self._replace_dead_workers())
        publishing = BackgroundTasks(loop)
        publishing.keep_running(PUBLISHING, self._registry.run)
        # Exempt everything loaded so far from garbage collection; see `cli.serve`.
        gc.freeze()
        gc.enable()
        if self._owner is not None:
            publishing.keep_running(CONFIRMING_OWNER, self._owner.run)
        await self._stop.asked.wait()
        self._service.tell_stopping(self._config.listen.longest_stop)
        replacing.cancel()
        self._signal_all(signal.SIGTERM)
        await self._wait_for_shutdown_delay()
        # From now on clients are rejected immediately, instead of waiting in the queue of a socket that no process
        # accepts from.
        self._listeners.close()
        await self._wait_for_workers()
        await publishing.stop()
        await self._registry.leave()
        await self._store.close()
        server.close()
        probes.close()

    async def _start_worker(self) -> None:
        ours, theirs = socket.socketpair()
        listeners = self._listeners.filenos()
        fds = (theirs.fileno(), self._counts, *listeners.values())
        words = [*map(str, fds[:2]), *(f"{name}={number}" for name, number in listeners.items())]
        # -P: a worker must not import from the directory in which the gateway was started.
        command = [sys.executable, "-P", "-m", "ostiary_gateway", "serve", "--worker", ",".join(words)]
        if self._source.path is not None:
            command += ["--config", str(self._source.path)]
        # A reload must not end a worker that is still starting: the signal is blocked until it has a handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            process = start_child(command, keep_open=fds)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        channel = Channel(reader, writer, lambda question, data: self._answer(process, question, data))
        listening = asyncio.get_running_loop().create_task(channel.run())
        self._workers.append(WorkerProcess(process, channel, listening))

    async def _answer(self, sender: ChildProcess, question: str, data: object) -> object:
        match question:
            case replica_state.OWN:
                return asdict(await self._registry.own())
            case ipc.CONFIGURATION:
                return self._accepted.text
            case ipc.TICKET_KEYS:
                return self._ticket_keys.to_json()
            case ipc.SERVING:
                self._note_serving(sender)
                return None
            case _:
                return await self._pass_on(sender, cast("dict[str, str]", data))

    def _note_serving(self, sender: ChildProcess) -> None:
        for worker in self._workers:
            worker.serving = worker.serving or worker.process is sender
        if len(self._workers) == self._config.listen.workers and all(worker.serving for worker in self._workers):
            self._service.tell_started()

    async def _pass_on(self, sender: ChildProcess, message: dict[str, str]) -> list[object]:
        """Relay a request or notification of one worker to the others."""
        others = [worker.channel for worker in self._workers if worker.process is not sender]
        if "tell" in message:
            for other in others:
                other.tell(message["tell"], message["data"])
            return []
        answers = await asyncio.gather(*(other.ask(message["ask"], message["data"]) for other in others))
        return [answer for answer in answers if answer is not None]

    async def _replace_dead_workers(self) -> None:
        """Replace workers that died, after a pause: one that dies immediately would die again."""
        pause = RESTART_SECONDS
        while True:
            await asyncio.sleep(pause)
            # Old tickets could be decrypted if the keys that sealed them were kept here for a late worker.
            self._ticket_keys.renew()
            ended = self._remove_ended()
            # The pause doubles with each round in which a worker ended, and is reset by a round without one.
            pause = min(pause * 2, LONGEST_PAUSE) if ended else RESTART_SECONDS
            for worker in ended:
                extra = {"pid": worker.process.pid, "exit_code": worker.process.returncode}
                log.error("a worker exited and is being replaced", extra=extra)
                await self._start_worker()

    def _remove_ended(self) -> list[WorkerProcess]:
        ended = [worker for worker in self._workers if worker.process.poll() is not None]
        for worker in ended:
            self._workers.remove(worker)
            worker.channel.close()
            worker.listening.cancel()
        return ended

    async def _wait_for_shutdown_delay(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.hurry.wait(), self._config.listen.shutdown_delay.total_seconds())

    async def _wait_for_workers(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.listen.drain.total_seconds() + 5.0
        while self._workers:
            self._remove_ended()
            if self._stop.hurry.is_set() or loop.time() > until:
                self._signal_all(signal.SIGKILL)
            await asyncio.sleep(0.02)

    def _signal_all(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.process.send_signal(number)

    async def _reload(self) -> None:
        trouble = ipc.NOT_RELOADED
        self._service.tell_reloading()
        try:
            trouble = await self._reload_workers()
        finally:
            # Always: systemd waits for it.
            self._service.tell_reloaded(trouble)

    async def _reload_workers(self) -> str:
        """Check the configuration, and signal the workers only if it is valid.

        Returns the error, or an empty string.
        """
        providers: list[object] = []
        try:
            source = self._source.at_this_moment()
            config = source.load(providers)
            check_reloadable(self._config, config)
            check_agents(list(self._listeners.agents), config)
        except OstiaryError as error:
            log.error(ipc.NOT_RELOADED, extra={"cause": str(error)})
            return ipc.NOT_RELOADED
        finally:
            await close_all(providers)
        self._accepted = source
        close_unnamed(self._listeners.agents, agent_addresses(config))
        self._signal_all(signal.SIGHUP)
        return ""

    async def _reports(self) -> Sequence[HealthReport]:
        answers = await asyncio.gather(*(worker.channel.ask("report") for worker in self._workers))
        return [
            HealthReport((("worker", "it does not answer"),))
            if answer is None
            else HealthReport(
                tuple((str(name), str(trouble)) for name, trouble in answer[0]), frozenset(map(str, answer[1]))
            )
            for answer in cast(list[tuple[list[tuple[str, str]], list[str]] | None], answers)
        ]

    async def _states(self) -> Sequence[WorkerState | None]:
        answers = await asyncio.gather(*(worker.channel.ask(replica_state.STATE) for worker in self._workers))
        return cast(list[WorkerState | None], answers)

    def _tell_seen(self, seen: Sequence[SeenReplica]) -> None:
        for worker in self._workers:
            worker.channel.tell(replica_state.SEEN, seen_json(seen))

    async def _snapshots(self) -> Sequence[Snapshot]:
        answers = await asyncio.gather(*(worker.channel.ask("snapshot") for worker in self._workers))
        return [answer for answer in cast(list[Snapshot | None], answers) if answer is not None]
