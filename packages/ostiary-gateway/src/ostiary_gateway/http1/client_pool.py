"""Connection pool for one upstream and worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from ostiary_gateway.http1.client_connection import UpstreamAddress, UpstreamConnection, dial, failure_reason
from ostiary_gateway.http1.fast_response_parser import NoWholeAnswers, WholeAnswers
from ostiary_gateway.http1.response import AnswerHeaders, FailureKind, UpstreamLost
from ostiary_gateway.http1.write_coalescer import Outbox

# Called with the connection, or with the reason why there is none. Returns whether the connection is still wanted.
Ready = Callable[[UpstreamConnection | None, UpstreamLost | None], bool]
# Opens a connection: `dial`, or through a proxy.
Dial = Callable[
    [UpstreamAddress, asyncio.AbstractEventLoop, Callable[[], UpstreamConnection]], Awaitable[UpstreamConnection]
]


class Pool:
    """Connections to one upstream. Idle ones are reused last in, first out. When all are busy, requests wait in order.

    Without *shortcuts* every response goes through httptools.
    """

    def __init__(
        self,
        address: UpstreamAddress,
        loop: asyncio.AbstractEventLoop,
        *,
        limit: int = 1024,
        queue: int = 4096,
        idle_timeout: float = 60.0,
        connect_timeout: float = 5.0,
        dial: Dial = dial,
        shortcuts: bool = True,
    ) -> None:
        self.address = address
        self._dial = dial
        self._loop = loop
        self._limit = limit
        self._queue = queue
        self._idle_timeout = idle_timeout
        self._connect_timeout = connect_timeout
        self._idle: list[tuple[UpstreamConnection, float]] = []
        self.connections: set[UpstreamConnection] = set()
        self._opening = 0
        self._waiters: deque[tuple[Ready, float]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.now = loop.time
        self.outbox = Outbox(loop)
        self.answer_headers = AnswerHeaders()
        self.whole_answers = (WholeAnswers if shortcuts else NoWholeAnswers)(self.answer_headers)

    def idle(self) -> UpstreamConnection | None:
        """Return an idle connection, or None."""
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    def acquire(self, ready: Ready, *, fresh: bool = False) -> None:
        """Call *ready* with a connection or an error. *fresh*: not an idle connection, which may have died."""
        if not fresh and (connection := self.idle()) is not None:
            ready(connection, None)
            return
        if self._full and self._idle:
            self._idle[0][0].abandon()
        if not self._full:
            self._open(ready)
        elif len(self._waiters) < self._queue:
            self._waiters.append((ready, self.now()))
        else:
            ready(None, UpstreamLost("too many requests wait for it", answered=False))

    def give_back(self, connection: UpstreamConnection) -> None:
        outdated = connection.address is not self.address
        if self._closed or outdated or connection.transport.is_closing():
            self.forget(connection)
            connection.transport.close()
            return
        connection.reused = True
        while self._waiters:
            ready, _ = self._waiters.popleft()
            if ready(connection, None):
                return
        self._idle.append((connection, self.now()))

    def forget(self, connection: UpstreamConnection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            if self._idle:
                self._idle = [entry for entry in self._idle if entry[0] is not connection]
            self._serve_next()

    def tick(self, now: float) -> None:
        """Time out connections and waiting requests. Called about once per second."""
        for connection in [c for c in self.connections if c.deadline <= now]:
            connection.time_out()
        stale = [connection for connection, since in self._idle if since + self._idle_timeout <= now]
        for connection in stale:
            self.forget(connection)
            connection.transport.close()
        while self._waiters and self._waiters[0][1] + self._connect_timeout <= now:
            ready, _ = self._waiters.popleft()
            ready(None, UpstreamLost("none of its connections became free in time", answered=False))

    def move(self, address: UpstreamAddress) -> None:
        """Use *address* for new connections. In-flight requests stay on their connections."""
        self.address = address
        self._close_idle()

    def close(self) -> None:
        """Close the idle connections. Busy ones are closed when their requests end."""
        self._closed = True
        self._close_idle()
        waiters, self._waiters = self._waiters, deque()
        for ready, _ in waiters:
            ready(None, UpstreamLost("the gateway is stopping", answered=False))

    def _close_idle(self) -> None:
        for connection, _ in self._idle:
            self.connections.discard(connection)
            connection.transport.close()
        self._idle.clear()

    @property
    def _full(self) -> bool:
        return len(self.connections) + self._opening >= self._limit

    def _serve_next(self) -> None:
        if self._waiters and not self._full and not self._closed:
            self._open(self._waiters.popleft()[0])

    def _open(self, ready: Ready) -> None:
        self._opening += 1
        task = self._loop.create_task(self._connect(ready))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, ready: Ready) -> None:
        connection, failure = None, None
        try:
            address = self.address
            dialing = self._dial(address, self._loop, lambda: UpstreamConnection(self))
            connection = await asyncio.wait_for(dialing, self._connect_timeout)
            connection.address = address
            if connection.transport.is_closing():
                # It was closed before this task continued.
                raise ConnectionAbortedError(0, "it was closed at once")
        except Exception as error:
            kind = FailureKind.TIMEOUT if isinstance(error, TimeoutError) else FailureKind.LOST
            failure = UpstreamLost(failure_reason(error), answered=False, kind=kind)
        finally:
            self._opening -= 1
        if connection is None or failure is not None:
            ready(None, failure)
            # A slot is free again: without this call, a waiting request would wait forever.
            self._serve_next()
            return
        self.connections.add(connection)
        if not ready(connection, None):
            self.give_back(connection)
