"""Starts the gateway's workers on one port, keeps them running, and passes on what it is told by signals.

    SIGTERM, SIGINT    stop: accept nothing more, finish what was begun      a second one: stop now
    SIGHUP             read the configuration again; a broken one changes nothing

With one worker everything happens in this process. With more, each is a process of its own that is handed the listening
socket, a channel to this one, and the memory in which all of them count; a worker that dies is replaced. Health and
metrics are answered here, for all of them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ostiary.core.config import read_bytes
from ostiary.core.counting.counts import MachineCounts, MemoryCounts
from ostiary.core.process import ChildProcess, start_child
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.gateway.config import default_config, load
from ostiary.gateway.config.providers import close_all
from ostiary.gateway.config.settings import Address, GatewayConfig
from ostiary.gateway.observe.metrics import Snapshot
from ostiary.gateway.process.health import Health, Report
from ostiary.gateway.process.worker import Worker, bind, check_reloadable
from ostiary.gateway.siblings.channel import LONGEST_LINE, Channel, SiblingsBySupervisor
from ostiary.interfaces.shared_counts import ImmediateCounts

log = logging.getLogger("ostiary.gateway")

# Told where the gateway listens, and where its health is asked for.
Told = Callable[[str, str], None]

# What a gateway is told by: stop, and read the configuration again.
SIGNALS = frozenset({signal.SIGHUP, signal.SIGTERM, signal.SIGINT})
COLLECT_AFTER = 10_000
RESTART_SECONDS = 1.0
LONGEST_PAUSE = 30.0
# What a worker asks its supervisor for, and how long that may take on a machine that is busy starting workers.
CONFIGURATION = "configuration"
CONFIGURATION_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Source:
    """Where the configuration comes from, again at each reload: a file, or nothing at all.

    What its providers count, and the limits, is counted in `counts`, by all workers and over reloads. `text` is what
    the file said at one moment, for those who must all have the same.
    """

    path: Path | None = None
    counts: ImmediateCounts = field(default_factory=MemoryCounts)
    text: str | None = None

    def at_this_moment(self) -> Source:
        """The same, with the text that the file has now. Raises `ConfigurationError` if it cannot be read."""
        return (
            self if self.path is None else replace(self, text=read_bytes(self.path).decode("utf-8", "surrogateescape"))
        )

    def load(self, built: list[object] | None = None) -> GatewayConfig:
        """Raises `ConfigurationError` with every mistake. The providers are added to *built* in any case."""
        if self.path is None:
            return default_config()
        return load(self.path, text=self.text, built=built, counts=self.counts)


def run(source: Source, config: GatewayConfig, *, on_listening: Told = lambda address, health: None) -> None:
    """Serve until a signal says stop. Raises `ConfigurationError` if an address cannot be had."""
    # They would end the process until somebody listens to them, and from the address on we can be told.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with _bound(config.listen.address, "listen") as listener, _bound(config.health, "health") as health:
        on_listening(_address(listener), _address(health))
        if config.listen.workers == 1:
            _run_loop(_serve_alone(source, config, listener, health))
        else:
            _run_loop(_Supervisor(source, config, listener, health).run())


def run_worker(
    source: Source, *, listener_fd: int, channel_fd: int, on_config: Callable[[GatewayConfig], None]
) -> None:
    """Be one of several workers: what it is given was opened by the process that started this one."""
    with socket.socket(fileno=listener_fd) as listener, socket.socket(fileno=channel_fd) as channel:
        listener.setblocking(False)
        _run_loop(_serve_for_supervisor(source, listener, channel, on_config))


def _run_loop(work: Any) -> None:
    _calm_collector()
    try:
        import uvloop
    except ImportError:  # pragma: no cover - a platform without it
        asyncio.run(work)
    else:
        uvloop.run(work)


def _calm_collector() -> None:
    """Let the collector of cycles rarely run, and never over what was loaded to stay.

    A request leaves no cycles behind. By its usual measure the collector would look through hundreds of thousands of
    objects (policies, tokens, plans) whenever there are many requests at once, and all of them would wait for that.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Stop:
    """Told by the first signal to stop, and by the second to hurry."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()

    def __call__(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()


def _on_signals(stop: _Stop, reload: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def begin_reload() -> None:
        task = loop.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, begin_reload)
    # They were held back until now, in a worker those that its supervisor held back.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


# Fetches the configuration for a reload.
Fetch = Callable[[], Awaitable[Source]]


async def _start_worker(
    source: Source, config: GatewayConfig, listener: socket.socket, fetch: Fetch
) -> tuple[Worker, _Stop]:
    worker, stop = Worker(config, listener, counts=source.counts), _Stop()
    _on_signals(stop, lambda: _reload(worker, fetch))
    await worker.start()
    # What was made until now stays for good: the collector need not look at it again, nor at each few requests.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 10)
    return worker, stop


async def _stop_worker(worker: Worker, stop: _Stop) -> None:
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
    built: list[object] = []
    try:
        source = await fetch()
        await worker.reload(source.load(built))
    except OstiaryError as error:
        log.error("the configuration was not reloaded", extra={"cause": str(error)})
        await close_all(built)


# --- one worker: this process ---


def _bound(address: Address, section: str) -> socket.socket:
    """The listening socket; an error names the setting, also where the address is the default that nobody wrote."""
    try:
        return bind(address)
    except ConfigurationError as error:
        refused = error
    what = "requests" if section == "listen" else "health and metrics"
    raise ConfigurationError(
        f"the gateway cannot listen on {address} for {what}",
        cause=refused.cause,
        where=f"{section}.address",
        hint=f"{refused.hint}: {section}: {{address: 127.0.0.1:PORT}}",
        code=refused.code,
    )


async def _serve_alone(source: Source, config: GatewayConfig, listener: socket.socket, health: socket.socket) -> None:
    async def fetch() -> Source:
        return source.at_this_moment()

    worker, stop = await _start_worker(source, config, listener, fetch)

    async def reports() -> Sequence[Report]:
        return [await worker.report()]

    async def snapshots() -> Sequence[Snapshot]:
        return [worker.snapshot()]

    probes = Health(reports, snapshots)
    server = await asyncio.get_running_loop().create_server(probes.connection, sock=health.dup())
    await stop.asked.wait()
    await _stop_worker(worker, stop)
    server.close()
    probes.close()


# --- several workers: processes of their own ---


@dataclass(slots=True)
class _Child:
    process: ChildProcess
    channel: Channel
    listening: asyncio.Task[None]


class _Supervisor:
    def __init__(self, source: Source, config: GatewayConfig, listener: socket.socket, health: socket.socket) -> None:
        self._source = source
        # What every worker has, a replaced one too: the file may since have been changed for the worse.
        self._accepted = source
        self._config = config
        self._listener = listener
        self._health = health
        self._children: list[_Child] = []
        self._stop = _Stop()
        # Memory that all workers share, for what they count together.
        self._counts = MachineCounts.create()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        _on_signals(self._stop, self._reload)
        for _ in range(self._config.listen.workers):
            await self._start_child()
        probes = Health(self._reports, self._snapshots)
        server = await loop.create_server(probes.connection, sock=self._health.dup())
        minder = loop.create_task(self._mind_children())
        await self._stop.asked.wait()
        minder.cancel()
        # Whoever connects from now on is turned away at once, and does not wait for somebody who will not come.
        self._listener.close()
        self._signal_all(signal.SIGTERM)
        await self._wait_for_children()
        server.close()
        probes.close()

    async def _start_child(self) -> None:
        ours, theirs = socket.socketpair()
        fds = (self._listener.fileno(), theirs.fileno(), self._counts)
        command = [sys.executable, "-m", "ostiary", "serve", "--worker", ",".join(map(str, fds))]
        if self._source.path is not None:
            command += ["--config", str(self._source.path)]
        # A reload while it is still starting must not end it: the signal waits until somebody listens to it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            process = start_child(command, keep_open=fds)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        channel = Channel(reader, writer, lambda question, data: self._answer(process, question, data))
        listening = asyncio.get_running_loop().create_task(channel.run())
        self._children.append(_Child(process, channel, listening))

    async def _answer(self, sender: ChildProcess, question: str, data: Any) -> Any:
        return self._accepted.text if question == CONFIGURATION else await self._pass_on(sender, data)

    async def _pass_on(self, sender: ChildProcess, data: Any) -> list[Any]:
        """What one worker asks the others, or tells them."""
        others = [child.channel for child in self._children if child.process is not sender]
        if "tell" in data:
            for other in others:
                other.tell(data["tell"], data["data"])
            return []
        answers = await asyncio.gather(*(other.ask(data["ask"], data["data"]) for other in others))
        return [answer for answer in answers if answer is not None]

    async def _mind_children(self) -> None:
        """Replace workers that died. Not in a hot loop: one that dies at once would die again."""
        pause = RESTART_SECONDS
        while True:
            await asyncio.sleep(pause)
            ended = self._ended()
            # Each round in which one ends doubles the pause; a quiet one begins anew.
            pause = min(pause * 2, LONGEST_PAUSE) if ended else RESTART_SECONDS
            for child in ended:
                extra = {"pid": child.process.pid, "exit_code": child.process.returncode}
                log.error("a worker exited and is being replaced", extra=extra)
                await self._start_child()

    def _ended(self) -> list[_Child]:
        ended = [child for child in self._children if child.process.poll() is not None]
        for child in ended:
            self._children.remove(child)
            child.channel.close()
            child.listening.cancel()
        return ended

    async def _wait_for_children(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.listen.drain.total_seconds() + 5.0
        while self._children:
            self._ended()
            if self._stop.hurry.is_set() or loop.time() > until:
                self._signal_all(signal.SIGKILL)
            await asyncio.sleep(0.02)

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children:
            child.process.send_signal(number)

    async def _reload(self) -> None:
        # Looked at once, here, and not by each worker: they are told of it only if it is good.
        built: list[object] = []
        try:
            source = self._source.at_this_moment()
            check_reloadable(self._config, source.load(built))
        except OstiaryError as error:
            log.error("the configuration was not reloaded", extra={"cause": str(error)})
        else:
            self._accepted = source
            self._signal_all(signal.SIGHUP)
        await close_all(built)

    async def _reports(self) -> Sequence[Report]:
        answers = await asyncio.gather(*(child.channel.ask("report") for child in self._children))
        return [
            Report((("worker", "it does not answer"),))
            if answer is None
            else Report(tuple((str(name), str(trouble)) for name, trouble in answer[0]), frozenset(map(str, answer[1])))
            for answer in answers
        ]

    async def _snapshots(self) -> Sequence[Snapshot]:
        answers = await asyncio.gather(*(child.channel.ask("snapshot") for child in self._children))
        return [answer for answer in answers if answer is not None]


async def _serve_for_supervisor(
    source: Source, listener: socket.socket, channel: socket.socket, on_config: Callable[[GatewayConfig], None]
) -> None:
    reader, writer = await asyncio.open_connection(sock=channel, limit=LONGEST_LINE)
    to_supervisor = Channel(reader, writer, _not_yet)
    answering = asyncio.get_running_loop().create_task(to_supervisor.run())

    async def fetch() -> Source:
        text = await to_supervisor.ask(CONFIGURATION, seconds=CONFIGURATION_SECONDS)
        if text is None and source.path is not None:
            raise ConfigurationError("the configuration cannot be read", cause="the supervisor does not answer")
        return replace(source, text=text)

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


async def _not_yet(question: str, data: Any) -> None:
    """A worker that is still starting has nothing to tell."""
