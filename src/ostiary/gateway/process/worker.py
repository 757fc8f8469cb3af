"""One worker of the gateway: listens, serves with the current configuration, and drains when it is stopped.

Called by `worker_process`, by the demo and by tests, which run one in their own process. The listening socket is made
once and outlives reloads: a client that connects meanwhile waits a moment in its queue, and none is turned away.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.gateway.config.reload import changes_that_need_a_restart
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.http1.server.connection import Server, ServerConnection
from ostiary.gateway.observe.snapshots import Snapshot
from ostiary.gateway.process.app.app import App
from ostiary.gateway.process.health import HealthReport
from ostiary.gateway.process.listener import BACKLOG, server_context, server_limits
from ostiary.gateway.siblings.channel import Siblings
from ostiary.gateway.upstream.health import settle_doubt
from ostiary.interfaces.shared_counts import ImmediateCounts

log = logging.getLogger("ostiary.gateway")

TICK_SECONDS = 0.5
GOODBYE_SECONDS = 1.0
# How long connections without a request may stay after a stop has begun.
NOTICE_SECONDS = 0.5


class Worker:
    """Serves on *listener* until it is stopped."""

    def __init__(
        self,
        config: GatewayConfig,
        listener: socket.socket,
        *,
        clock: Clock = SYSTEM_CLOCK,
        counts: ImmediateCounts | None = None,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.app = App(config, self._loop, clock=clock, counts=counts)
        self._http = Server(self.app.engine.handle, server_limits(config.listen), self._loop)
        self._http.on_refused = self.app.engine.record_unreadable
        self._connections = self._http.connections
        self._old: list[App] = []
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._draining = False

    async def start(self) -> None:
        await self._listen(self.app.config)
        self.app.start()
        self._ticker = self._loop.create_task(self._tick())

    async def reload(self, config: GatewayConfig) -> None:
        """Serve with *config* from the next request on. Raises, and changes nothing, if it cannot be opened."""
        check_reloadable(self.app.config, config)
        old = self.app
        new = App(config, self._loop, shared=old.shared, clock=self._clock)
        try:
            await self._listen(config)
        except BaseException:
            await new.close(keep_shared=True)
            raise
        self._http.limits = server_limits(config.listen)
        await old.stop_background()
        self.app = new
        self._http.handle = new.engine.handle
        self._http.on_refused = new.engine.record_unreadable
        # The next configuration may read the remembered heads differently.
        self._http.known.clear()
        new.adopt(old)
        new.start()
        # Requests that are under way end with the engine that they began with.
        self._old.append(old)
        log.info("the configuration was reloaded")

    async def stop(self, *, drain: float | None = None) -> None:
        """Accept nothing more, give open requests *drain* seconds to end, then close everything."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        # The socket itself, too: while it is open, new clients would wait in its queue in vain.
        self._listener.close()
        seconds = self.app.config.listen.drain.total_seconds() if drain is None else drain
        # First every answer says that the connection ends, so that a client that is sending a request is not reset.
        for connection in list(self._connections):
            connection.draining = True
        await self._wait_until(lambda: not self._connections, min(seconds, NOTICE_SECONDS))
        for connection in list(self._connections):
            connection.drain()
        await self._wait_until(lambda: not any(map(_is_unfinished, self._connections)), seconds)
        # Most clients close at once; some notice only when they next need the connection.
        await self._wait_until(lambda: not self._connections, min(seconds, GOODBYE_SECONDS))
        for connection in list(self._connections):
            connection.transport.abort()
        # One turn of the loop, so that cut requests are recorded.
        await asyncio.sleep(0)
        if self._ticker is not None:
            self._ticker.cancel()
        for app in self._old:
            await app.close(keep_shared=True)
        await self.app.close()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def snapshot(self) -> Snapshot:
        metrics = self.app.shared.metrics
        metrics.audit_events.values[()] = sum(app.auditor.events for app in (*self._old, self.app))
        metrics.audit_dropped.values[()] = sum(app.auditor.dropped for app in (*self._old, self.app))
        return metrics.snapshot()

    def join(self, siblings: Siblings) -> None:
        """Use *siblings* to reach the other workers of this gateway from now on."""
        self.app.shared.siblings = siblings

    async def answer(self, question: str, data: object) -> object:
        """Answer what the supervisor asks, and what other workers ask or tell through it."""
        match question:
            case "report":
                report = await self.report()
                return [report.checks, list(report.unasked)]
            case "snapshot":
                return self.snapshot()
            case _:
                return self.app.answer_sibling(question, data)

    async def report(self) -> HealthReport:
        """For readiness probes: the names of what is wrong, without details that would help a stranger."""
        checks = [
            ("accepting requests", "it is stopping" if self._draining else ""),
            ("token store", await self._store_trouble()),
            ("revocations", self.app.shared.authenticator.feed.report()),
        ]
        for upstream in self.app.routes.upstreams:
            await settle_doubt(upstream)
            checks.append((f"upstream {upstream.name}", upstream.trouble()))
        unasked = [
            f"upstream {upstream.name}" for upstream in self.app.routes.upstreams if upstream.settings.health is None
        ]
        return HealthReport(tuple(checks), frozenset(unasked))

    async def _store_trouble(self) -> str:
        try:
            await self.app.shared.tokens.store.session("-")
        except OstiaryError:
            return "unavailable"
        return await self.app.shared.store_health.probe()

    # --- inside ---

    async def _listen(self, config: GatewayConfig) -> None:
        context = server_context(config.listen.tls) if config.listen.tls is not None else None
        # A descriptor of its own: closing the server of the old configuration must not close the socket.
        server = await self._loop.create_server(
            self._http.connection,
            sock=self._listener.dup(),
            ssl=context,
            backlog=BACKLOG,
            ssl_handshake_timeout=10.0 if context is not None else None,
        )
        old, self._server = self._server, server
        if old is not None:
            old.close()

    async def _wait_until(self, true: Callable[[], bool], seconds: float) -> None:
        # Polled: this happens once in the life of a worker, and connections need no code for it.
        deadline = self._loop.time() + seconds
        while not true() and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._loop.time()
            for connection in [c for c in self._connections if c.deadline <= now]:
                connection.time_out()
            with suppress(Exception):
                self.app.shared.authenticator.tick()
                self.app.shared.store_health.tick()
                self.app.shared.authenticator.feed.report()
            self.app.tick(now)
            for app in self._old:
                app.tick(now)
            await self._retire()

    async def _retire(self) -> None:
        """Close old configurations whose last request has ended."""
        idle = [app for app in self._old if not app.engine.busy]
        for app in idle:
            self._old.remove(app)
            await app.close(keep_shared=True)


def _is_unfinished(connection: ServerConnection) -> bool:
    return connection.busy or connection.transport.get_write_buffer_size() > 0


def check_reloadable(old: GatewayConfig, new: GatewayConfig) -> None:
    """Raise `ConfigurationError` for a change that needs a restart: addresses, workers, store, tokens, limits."""
    changed = list(changes_that_need_a_restart(old, new))
    if changed:
        raise ConfigurationError(
            "the configuration was not reloaded",
            cause=f"changing {', '.join(changed)} needs a restart",
            hint="restart the gateway, or undo the change",
            code="config-invalid",
        )
