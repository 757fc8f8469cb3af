"""The SPOE listeners for HAProxy, which outlive reloads like the main listener.

The supervisor or the single worker binds the sockets of the initial configuration, and all workers share them. A reload
may add an address only if there is a single worker. Sockets that are no longer configured are closed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence

from ostiary.core.clock import Clock
from ostiary.errors import ConfigurationError
from ostiary_gateway.config.extauth import DoorSettings
from ostiary_gateway.config.extauth_loading import speaks_tls
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.values import Address
from ostiary_gateway.extauth.haproxy.agent import Agent, HandleQuestion
from ostiary_gateway.http1.fair_queue import FairQueue
from ostiary_gateway.server.listener import BACKLOG, Sockets, bind, server_context


def agent_addresses(config: GatewayConfig) -> list[Address]:
    """Return the addresses that the HAProxies of *config* connect to, in the order of the configuration."""
    return [door.agent.address for door in config.doors if door.agent is not None]


def bind_agents(config: GatewayConfig) -> Sockets:
    """Bind all addresses. Raises `ConfigurationError` if one cannot be bound."""
    sockets: Sockets = {}
    try:
        for address in agent_addresses(config):
            sockets[address] = bind(address)
    except ConfigurationError:
        close_sockets(sockets)
        raise
    return sockets


def close_sockets(sockets: Sockets) -> None:
    for each in sockets.values():
        each.close()


def close_unnamed(sockets: Sockets, addresses: Sequence[Address]) -> None:
    """Close sockets that are no longer configured: HAProxy is rejected there immediately instead of waiting."""
    for address in [address for address in sockets if address not in addresses]:
        sockets.pop(address).close()


def check_agents(bound: Sequence[Address], config: GatewayConfig) -> None:
    """Raise `ConfigurationError` if *config* needs a new socket, which several workers cannot share."""
    new = [address for address in agent_addresses(config) if address not in bound]
    if new:
        raise ConfigurationError(
            "the configuration was not reloaded",
            cause=f"HAProxy is to ask at {new[0]}, and several workers cannot begin to listen there",
            hint="restart the gateway, or undo the change",
            code="config-invalid",
        )


class AgentListeners:
    """The SPOE listeners of one worker. If *is_alone*, it may bind further addresses."""

    def __init__(
        self,
        sockets: Sockets,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        is_alone: bool,
        queue: FairQueue | None = None,
    ) -> None:
        self._sockets = sockets
        self._loop = loop
        self._clock = clock
        self._is_alone = is_alone
        self._queue = queue
        self._agents: dict[Address, Agent] = {}
        self._servers: dict[Address, asyncio.Server] = {}

    def prepare(self, config: GatewayConfig) -> None:
        """Bind the new addresses of *config*. Raises `ConfigurationError` and then changes nothing."""
        new = [address for address in agent_addresses(config) if address not in self._sockets]
        if new and not self._is_alone:
            check_agents(list(self._sockets), config)
        bound: Sockets = {}
        try:
            for address in new:
                bound[address] = bind(address)
        except ConfigurationError:
            close_sockets(bound)
            raise
        self._sockets |= bound

    async def serve(self, config: GatewayConfig, doors: Mapping[Address, tuple[DoorSettings, HandleQuestion]]) -> None:
        """Serve with *doors* from the next request on, and with the listener's current certificate.

        Raises, and changes nothing, if the certificate cannot be used.
        """
        contexts = {address: _context(config, door) for address, (door, _) in doors.items()}
        for address, (_, handle) in doors.items():
            agent = self._agents.get(address)
            if agent is None:
                agent = self._agents[address] = Agent(handle, self._loop, self._clock, self._queue)
            agent.handle = handle
            await self._listen(address, agent, contexts[address])
        close_unnamed(self._sockets, list(doors))
        for address in [address for address in self._servers if address not in doors]:
            self._servers.pop(address).close()
            self._agents.pop(address).drain()

    async def _listen(self, address: Address, agent: Agent, context: ssl.SSLContext | None) -> None:
        # A duplicate descriptor: closing the server of the old configuration must not close the socket.
        server = await self._loop.create_server(
            agent.connection,
            sock=self._sockets[address].dup(),
            ssl=context,
            backlog=BACKLOG,
            ssl_handshake_timeout=10.0 if context is not None else None,
        )
        old, self._servers[address] = self._servers.get(address), server
        if old is not None:
            old.close()

    def tick(self) -> None:
        for agent in self._agents.values():
            agent.tick()

    @property
    def busy(self) -> bool:
        return any(agent.busy for agent in self._agents.values())

    def stop_accepting(self) -> None:
        for server in self._servers.values():
            server.close()
        close_sockets(self._sockets)

    def drain(self) -> None:
        for agent in self._agents.values():
            agent.drain()

    def abort(self) -> None:
        for agent in self._agents.values():
            agent.abort()


def _context(config: GatewayConfig, door: DoorSettings) -> ssl.SSLContext | None:
    tls = config.listen.tls if speaks_tls(door) else None
    return None if tls is None else server_context(tls)
