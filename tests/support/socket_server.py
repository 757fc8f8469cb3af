"""A server of raw sockets: each connection has a thread, which a subclass says what to do with."""

from __future__ import annotations

import socket
import threading
from abc import abstractmethod
from contextlib import suppress
from typing import Self


class SocketServer:
    """Listens at `port` of *host*, a loopback address, from the beginning of the block to its end, or to `stop`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family, backlog=128)
        self.port = int(self._server.getsockname()[1])
        self._open: list[socket.socket] = []

    @abstractmethod
    def serve(self, connection: socket.socket) -> None: ...

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Nobody listens any more, and what is open ends."""
        # A thread in accept() is not woken by close().
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()
