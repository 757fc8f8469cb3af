"""The echo: stands in the place of the application, and keeps every marked request that arrives.

It ends a connection after one answer, and then reads what else came on it. So a request that hid in the body of another
is seen, and is never answered: its answer could reach somebody else. What other people send meanwhile is answered and
not kept.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from contextlib import suppress
from typing import Self

from ostiary.cli.doctor.traffic.http_bytes import Incomplete, Message, read_message
from ostiary.cli.doctor.traffic.observed import Arrival
from ostiary.errors import ConfigurationError

BODY = b"This is the echo of ostiary doctor, and not the application.\n"
MOST_CONNECTIONS = 64
MOST_BYTES = 256 * 1024
MOST_ARRIVALS = 64
IDLE_SECONDS = 30.0
# A proxy that has read our answer hangs up at once; one that does not is not waited for.
LEFTOVER_SECONDS = 1.0
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: no-store\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n"
)


class Echo:
    """Listens at *host* and *port*. *run* is the word that all marks of this run begin with."""

    def __init__(self, host: str, port: int, run: str) -> None:
        self._marks = re.compile(rb"%s-(\d+)(i?)" % run.encode())
        try:
            self._server = socket.create_server((host, port), family=_family(host), backlog=128)
        except OSError as error:
            raise ConfigurationError(
                "the echo cannot listen",
                cause=error.strerror or str(error),
                where=f"--echo {host}:{port}",
                hint="stop the application, so that the echo can take its port, or point the proxy at another one",
                code="echo-unusable",
            ) from None
        self.port = int(self._server.getsockname()[1])
        self._arrivals: dict[int, list[Arrival]] = {}
        self._busy = 0
        self._changed = threading.Condition()
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        # A thread in accept() is not woken by close().
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def arrivals(self, number: int, *, seconds: float = 2 * LEFTOVER_SECONDS) -> tuple[Arrival, ...]:
        """What arrived with the mark *number*, once nothing is read any more."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._busy and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return tuple(self._arrivals.pop(number, ()))

    # --- one connection ---

    def _accept(self) -> None:
        while True:
            self._slots.acquire()
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(IDLE_SECONDS)
                first = connection.recv(65536)
                if first:
                    self._count_busy(1)
                    try:
                        self._exchange(connection, first)
                    finally:
                        self._count_busy(-1)
        finally:
            self._slots.release()

    def _exchange(self, connection: socket.socket, data: bytes) -> None:
        message, data = self._read(connection, data)
        if message is None:
            # Half a request, after which nothing more came: its head may still say enough.
            self._keep_unfinished(data)
            return
        self._keep(message, 0)
        answer = _ANSWER % len(BODY)
        connection.sendall(answer if message.first.startswith(b"HEAD ") else answer + BODY)
        connection.shutdown(socket.SHUT_WR)
        self._keep_leftover(_rest_of(connection, message.rest))

    def _read(self, connection: socket.socket, data: bytes) -> tuple[Message | None, bytes]:
        while len(data) < MOST_BYTES:
            try:
                return read_message(data), data
            except Incomplete:
                more = b""
                with suppress(OSError):
                    more = connection.recv(65536)
                if not more:
                    break
                data += more
        return None, data

    def _keep_leftover(self, data: bytes) -> None:
        for number in range(1, 5):
            try:
                message = read_message(data)
            except Incomplete:
                self._keep_unfinished(data, number)
                return
            self._keep(message, number)
            data = message.rest

    def _keep_unfinished(self, data: bytes, number: int = 0) -> None:
        with suppress(Incomplete):
            self._keep(read_message(data.rstrip() + b"\r\n\r\n", has_body=False), number)

    def _keep(self, message: Message, number: int) -> None:
        method, _, rest = message.first.partition(b" ")
        target = rest.rpartition(b" ")[0] or rest
        mark = self._marks.search(target) or self._marks.search(message.head)
        if mark is None:
            return
        arrival = Arrival(
            message.head, method, target, message.headers, message.trailers, number, is_inner=mark[2] == b"i"
        )
        with self._changed:
            kept = self._arrivals.setdefault(int(mark[1]), [])
            if len(kept) < MOST_ARRIVALS:
                kept.append(arrival)

    def _count_busy(self, step: int) -> None:
        with self._changed:
            self._busy += step
            self._changed.notify_all()


def _rest_of(connection: socket.socket, data: bytes) -> bytes:
    end = time.monotonic() + LEFTOVER_SECONDS
    with suppress(OSError):
        while len(data) < MOST_BYTES and (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            more = connection.recv(65536)
            if not more:
                break
            data += more
    return data


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
