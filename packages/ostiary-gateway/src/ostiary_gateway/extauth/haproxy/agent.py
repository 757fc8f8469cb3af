"""The gateway as an agent of HAProxy: state shared by the connections of one listening address."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ostiary.core.clock import Clock
from ostiary_gateway.extauth.haproxy.connection import AgentConnection
from ostiary_gateway.http1.fair_queue import FairQueue
from ostiary_gateway.http1.write_coalescer import Outbox
from ostiary_gateway.observability.repeated_log import RepeatedLog

log = logging.getLogger("ostiary.gateway")

# Called with a connection, the stream and frame numbers, and the messages. Must not raise.
HandleQuestion = Callable[[AgentConnection, int, int, bytes], None]

# HAProxy opens a few for each of its threads.
MOST_CONNECTIONS = 1024


class Agent:
    """The agent of one address. A reload replaces `handle`."""

    def __init__(
        self,
        handle: HandleQuestion,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        queue: FairQueue | None = None,
    ) -> None:
        self.handle = handle
        self.loop = loop
        self.outbox = Outbox(loop)
        # Shared by the listeners of a worker.
        self.queue = queue or FairQueue(loop)
        self.connections: set[AgentConnection] = set()
        self._log = RepeatedLog(log, clock)

    def connection(self) -> AgentConnection:
        """Return the protocol of a new connection."""
        return AgentConnection(self)

    def admit(self, connection: AgentConnection) -> bool:
        """Register the connection. Return False if there are too many."""
        if len(self.connections) >= MOST_CONNECTIONS:
            self.note_broken(connection, "too many connections are open")
            return False
        self.connections.add(connection)
        return True

    def forget(self, connection: AgentConnection) -> None:
        self.connections.discard(connection)

    def answer_question(self, connection: AgentConnection, stream: int, frame: int, payload: bytes) -> None:
        # Looked up for every request: a connection may outlive a configuration.
        self.handle(connection, stream, frame, payload)

    def note_broken(self, connection: AgentConnection, cause: str) -> None:
        fields = {"cause": cause, "address": connection.remote_address}
        self._log.write(logging.WARNING, "a connection of HAProxy was ended", fields)

    def tick(self) -> None:
        """Time out slow connections. Runs about twice a second."""
        now = self.loop.time()
        for connection in [each for each in self.connections if each.deadline <= now]:
            connection.time_out()

    def drain(self) -> None:
        for connection in list(self.connections):
            connection.drain()

    def abort(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()

    @property
    def busy(self) -> bool:
        return any(connection.busy for connection in self.connections)
