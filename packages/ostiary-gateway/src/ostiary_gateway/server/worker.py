"""One worker of the gateway: listens, serves with the current configuration, and drains when it is stopped.

The listening socket is created once and outlives reloads: a client that connects during a reload waits briefly in the
socket's queue, and no connection is rejected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ConfigurationError, OstiaryError, ProviderError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.listen import ServerTls
from ostiary_gateway.config.reload import check_reloadable
from ostiary_gateway.http1.fair_queue import FairQueue
from ostiary_gateway.http1.server_connection import Server, ServerConnection
from ostiary_gateway.interfaces.store_capabilities import OwnedStore
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts
from ostiary_gateway.observability.logging import report_suppressed
from ostiary_gateway.observability.snapshots import Snapshot
from ostiary_gateway.proxy.health import settle_doubt
from ostiary_gateway.replicas.owner import StoreOwner
from ostiary_gateway.replicas.replica import Replica
from ostiary_gateway.replicas.worker_ipc import Workers
from ostiary_gateway.server import replica_state
from ostiary_gateway.server.app import App
from ostiary_gateway.server.haproxy_listener import AgentListeners
from ostiary_gateway.server.health import HealthReport
from ostiary_gateway.server.listener import (
    GRPC_PROTOCOL,
    ListenerFiles,
    Sockets,
    certificate_expiry,
    serve_on,
    server_context,
    server_limits,
)
from ostiary_gateway.server.process_state import no_replica
from ostiary_gateway.server.replica_state import ReplicaState
from ostiary_gateway.server.ticket_keys import TicketKeys

if TYPE_CHECKING:
    from ostiary_gateway.extauth.grpc_connection import CheckConnection
    from ostiary_gateway.server.grpc_listener import GrpcListener

log = logging.getLogger("ostiary.gateway")

TICK_SECONDS = 0.5
GOODBYE_SECONDS = 1.0
# How long connections without a request may stay open after a stop has begun.
NOTICE_SECONDS = 0.5


class Worker:
    """Serve on *listener* until stopped. *shortcuts*: see `App`."""

    def __init__(
        self,
        config: GatewayConfig,
        listener: socket.socket,
        *,
        clock: Clock = SYSTEM_CLOCK,
        counts: ReplicatedCounts | None = None,
        supervised: bool = False,
        grpc_listener: socket.socket | None = None,
        agents: Sockets | None = None,
        ticket_keys: TicketKeys | None = None,
        shortcuts: bool = True,
    ) -> None:
        self._listener = listener
        self._shortcuts = shortcuts
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # Shared by all listeners: a flood on one of them does not starve requests to the others.
        self._queue = FairQueue(self._loop, now=clock.monotonic)
        self.agents = AgentListeners(agents or {}, self._loop, clock, is_alone=not supervised, queue=self._queue)
        self.app = App(config, self._loop, clock=clock, counts=counts, shortcuts=shortcuts)
        self._http = Server(
            self.app.handle, server_limits(config.listen), self._loop, shortcuts=shortcuts, queue=self._queue
        )
        self._http.answer_known, self._http.pass_on = self.app.answer_known, self.app.pass_on
        self._http.on_refused = self.app.engine.record_unreadable
        self._grpc = None if grpc_listener is None else self._open_grpc(grpc_listener)
        self._old: list[App] = []
        # Audit events of closed configurations.
        self._retired_events = self._retired_dropped = 0
        self._server: asyncio.Server | None = None
        # Serializes changes: a reload and a renewed certificate each replace the server.
        self._listening = asyncio.Lock()
        self._tls: ServerTls | None = None
        self._ticket_keys = ticket_keys or TicketKeys.create(clock)
        self._tls_files = ListenerFiles(None, clock)
        self._closed = False
        self._ticker: asyncio.Task[None] | None = None
        self._draining = False
        self._supervised = supervised
        self.replica = ReplicaState(config, self.app.shared, clock, self._loop, checks=self._known_troubles)

    async def start(self) -> None:
        await self.app.api_groups.plugins.load()
        self.agents.prepare(self.app.config)
        await self._listen(self.app.config)
        await self.agents.serve(self.app.config, self.app.doors.agents)
        self.app.start()
        if not self._supervised:
            self.replica.start_alone(self.app.config)
        self._ticker = self._loop.create_task(self._tick())

    async def reload(self, config: GatewayConfig) -> None:
        """Serve with *config* from the next request on. Raises, and changes nothing, if it cannot be opened."""
        check_reloadable(self.app.config, config)
        old = self.app
        await confirm_owner(old.shared.owner, old.config, config)
        new = App(config, self._loop, shared=old.shared, clock=self._clock, shortcuts=self._shortcuts)
        try:
            await new.followers.prepare(old.followers)
            self.agents.prepare(config)
            await self._listen(config)
            await self.agents.serve(config, new.doors.agents)
        except BaseException:
            await new.close(keep_shared=True)
            raise
        self._http.limits = limits = server_limits(config.listen)
        await old.stop_background()
        self.app = new
        self._http.handle, self._http.answer_known, self._http.pass_on = new.handle, new.answer_known, new.pass_on
        self._http.on_refused = new.engine.record_unreadable
        if self._grpc is not None:
            self._grpc.reload(new.doors.check_handler().handle, limits)
        # The new configuration may parse the cached heads differently.
        self._http.heads.clear()
        new.adopt(old)
        new.start()
        self.replica.reload(config)
        # In-flight requests end with the engine that they began with.
        self._old.append(old)
        log.info("the configuration was reloaded")

    async def stop(self) -> None:
        """Announce the stop; after the shutdown delay stop accepting and drain in-flight requests."""
        listen = self.app.config.listen
        self._announce_end()
        await asyncio.sleep(listen.shutdown_delay.total_seconds())
        await self.close(drain=listen.drain.total_seconds())

    async def close(self, *, drain: float) -> None:
        """Stop accepting, give in-flight requests *drain* seconds to end, then close everything."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        # Close the socket too: while it is open, new clients would wait in its queue without ever being accepted.
        self._listener.close()
        if self._grpc is not None:
            self._grpc.close()
        self.agents.stop_accepting()
        self._announce_end()
        await self._wait_until(lambda: not self._connections, min(drain, NOTICE_SECONDS))
        for connection in self._connections:
            connection.drain()
        self.agents.drain()
        await self._wait_until(lambda: not any(map(_is_unfinished, self._connections)) and not self.agents.busy, drain)
        # Most clients close immediately; some notice only when they next need the connection.
        await self._wait_until(lambda: not self._connections, min(drain, GOODBYE_SECONDS))
        for connection in self._connections:
            connection.transport.abort()
        self.agents.abort()
        # One turn of the loop, so that aborted requests are recorded.
        await asyncio.sleep(0)
        if self._ticker is not None:
            self._ticker.cancel()
        await self.replica.stop()
        for app in self._old:
            await app.close(keep_shared=True)
        await self.app.close()

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def retiring(self) -> int:
        """The number of old configurations that still serve requests that began with them."""
        return len(self._old)

    def snapshot(self) -> Snapshot:
        metrics = self.app.shared.metrics
        auditors = [app.auditor for app in (*self._old, self.app)]
        metrics.audit_events.values[()] = self._retired_events + sum(auditor.events for auditor in auditors)
        metrics.audit_dropped.values[()] = self._retired_dropped + sum(auditor.dropped for auditor in auditors)
        return metrics.snapshot()

    def join(self, siblings: Workers, own_replica: Callable[[], Awaitable[Replica | None]] = no_replica) -> None:
        """Use *siblings* to reach the other workers of this gateway from now on.

        *own_replica* returns the state of the replica that this worker belongs to.
        """
        self.app.shared.siblings = siblings
        self.app.shared.own_replica = own_replica

    async def answer(self, question: str, data: object) -> object:
        """Handle requests and notifications from the supervisor, and those from other workers that it relays."""
        match question:
            case "report":
                report = await self.report()
                return [report.checks, list(report.unasked)]
            case "snapshot":
                return self.snapshot()
            case replica_state.STATE:
                return await self.replica.state()
            case replica_state.SEEN:
                self.replica.take_seen(data)
                return None
            case _:
                return self.app.answer_sibling(question, data)

    async def report(self) -> HealthReport:
        """Return the readiness report: names of what fails, without details that would help an attacker."""
        checks = [
            ("accepting requests", "it is stopping" if self._draining else ""),
            ("token store", await self._store_trouble()),
            ("revocations", self.app.shared.authenticator.feed.report()),
            *self._issuer_trouble(),
            *self.app.followers.report(),
        ]
        for upstream in self.app.routes.upstreams:
            await settle_doubt(upstream)
            checks.append((f"upstream {upstream.name}", upstream.trouble()))
        unasked = [
            f"upstream {upstream.name}" for upstream in self.app.routes.upstreams if upstream.settings.health is None
        ]
        return HealthReport(tuple(checks), frozenset(unasked))

    def _issuer_trouble(self) -> list[tuple[str, str]]:
        issuer = self.app.issuer
        # Without details: they are in the log.
        return [] if issuer is None else [("issuer", "no JWT can be signed" if issuer.trouble else "")]

    def _known_troubles(self) -> list[tuple[str, str]]:
        """Like `report`, but only from cached state, because it is called every few seconds."""
        shared = self.app.shared
        owner = "" if shared.owner is None else shared.owner.trouble
        return [
            ("accepting requests", "it is stopping" if self._draining else ""),
            ("token store", owner or shared.store_health.trouble),
            ("revocations", shared.authenticator.feed.report()),
            *self._issuer_trouble(),
            *self.app.followers.troubles(),
            *((f"upstream {upstream.name}", upstream.trouble()) for upstream in self.app.routes.upstreams),
        ]

    async def _store_trouble(self) -> str:
        owner = self.app.shared.owner
        if owner is not None and owner.trouble:
            return owner.trouble
        try:
            await self.app.shared.tokens.store.session("-")
        except OstiaryError:
            return "unavailable"
        return await self.app.shared.store_health.probe()

    # --- internals ---

    def _open_grpc(self, listener: socket.socket) -> GrpcListener:
        # Imported lazily: most gateways have no gRPC listener and do not need its library.
        from ostiary_gateway.server.grpc_listener import GrpcListener

        handle = self.app.doors.check_handler().handle
        return GrpcListener(listener, handle, server_limits(self.app.config.listen), self._loop, self._queue)

    @property
    def _connections(self) -> list[ServerConnection | CheckConnection]:
        return [*self._http.connections, *(() if self._grpc is None else self._grpc.connections)]

    def _announce_end(self) -> None:
        """Announce in every response that the connection will close.

        Otherwise a client that is sending a request would be reset.
        """
        self._draining = True
        for connection in self._http.connections:
            connection.draining = True

    async def _listen(self, config: GatewayConfig) -> None:
        async with self._listening:
            await self._listen_with(config.listen.tls)

    async def _listen_with(self, tls: ServerTls | None) -> None:
        # Fingerprinted before they are read: a change in between is noticed later.
        files = ListenerFiles(tls, self._clock)
        context = server_context(tls, ticket_keys=self._ticket_keys) if tls is not None else None
        if context is not None:
            context.on_handshake = self.app.shared.metrics.listener_handshake
        grpc_context = server_context(tls, GRPC_PROTOCOL) if tls is not None else None
        server = await serve_on(self._listener, self._http.connection, context, self._loop)
        old, self._server = self._server, server
        if old is not None:
            old.close()
        if self._closed:
            server.close()
        if self._grpc is not None:
            await self._grpc.listen(grpc_context)
        self._tls, self._tls_files = tls, files
        self.app.shared.metrics.certificate_expiry.set(certificate_expiry(tls))

    async def _take_up_new_certificate(self) -> None:
        """Listen with a certificate that was renewed in its file. Open connections keep the old one."""
        if self._closed or not self._tls_files.have_changed():
            return
        try:
            async with self._listening:
                await self._listen_with(self._tls)
                await self.agents.serve(self.app.config, self.app.doors.agents)
        except (OstiaryError, OSError) as error:
            log.error("the renewed certificate cannot be used, and the old one stays", extra={"cause": str(error)})
        else:
            log.info("the renewed certificate is in use")

    async def _wait_until(self, true: Callable[[], bool], seconds: float) -> None:
        # Polling is enough: this runs once in the life of a worker, and connections need no code for it.
        deadline = self._loop.time() + seconds
        while not true() and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._loop.time()
            for connection in [c for c in self._connections if c.deadline <= now]:
                connection.time_out()
            self.agents.tick()
            with suppress(Exception):
                self.app.shared.authenticator.tick()
                self.app.shared.store_health.tick()
                self.app.shared.authenticator.feed.report()
            self.app.tick(now)
            for app in self._old:
                app.tick(now)
            await self._retire()
            await self._take_up_new_certificate()
            self._ticket_keys.renew()
            report_suppressed()

    async def _retire(self) -> None:
        """Close old configurations whose last request has ended."""
        idle = [app for app in self._old if not app.busy]
        for app in idle:
            # Closed first, because closing may drop events too: counters must never decrease.
            await app.close(keep_shared=True)
            if app in self._old:
                self._old.remove(app)
                self._retired_events += app.auditor.events
                self._retired_dropped += app.auditor.dropped


def _is_unfinished(connection: ServerConnection | CheckConnection) -> bool:
    return connection.busy or connection.transport.get_write_buffer_size() > 0


async def confirm_owner(owner: StoreOwner | None, old: GatewayConfig, new: GatewayConfig) -> None:
    """Raise `ConfigurationError` if the external URL changed and the token store does not belong to that gateway."""
    if old.owner == new.owner or ability(old.store.instance, OwnedStore) is None:
        return
    if owner is None or not new.owner:
        raise ConfigurationError(
            "the configuration was not reloaded",
            cause="whether externalURL is set decides whether the token store has an owner",
            hint="restart the gateway, or undo the change",
        )
    try:
        await owner.change(new.owner)
        return
    except ProviderError as error:
        failure = error
    raise ConfigurationError(
        "the configuration was not reloaded",
        cause=f"{failure.summary}: {failure.cause}" if failure.cause else failure.summary,
        hint=failure.hint,
        code=failure.code,
    )
