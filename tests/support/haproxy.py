"""A real HAProxy with what ``ostiary door haproxy`` prints, its runtime socket, and agents that misbehave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from ostiary.gateway.doors.haproxy import spop
from tests.support.gateway import SECONDS


def runtime(path: Path, command: str) -> str:
    """What HAProxy says to a command on its runtime socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(str(path))
        connection.sendall(command.encode() + b"\n")
        output = b""
        while data := connection.recv(65536):
            output += data
    return output.decode()


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(SECONDS / 0.02)):
        if is_so():
            return
        pause.wait(0.02)
    raise AssertionError(f"it never happened: {what}")


class FakeAgent:
    """An agent of HAProxy that greets as it should, and then does to every question what *answer* says.

    *answer* gets the numbers of a question, and gives the bytes that are sent; None: nothing is.
    """

    def __init__(self, answer: Callable[[int, int], bytes | None]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._server.getsockname()[1])
        self.answer = answer
        self.asked = threading.Event()
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def stop(self) -> None:
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
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader, suppress(OSError):
            while len(head := reader.read(4)) == 4:
                frame = reader.read(int.from_bytes(head, "big"))
                if frame[0] == spop.HAPROXY_HELLO:
                    connection.sendall(_hello())
                elif frame[0] == spop.NOTIFY:
                    stream, at = spop.read_number(frame, 5)
                    number, _ = spop.read_number(frame, at)
                    self.asked.set()
                    answer = self.answer(stream, number)
                    if answer == b"":
                        return
                    if answer is not None:
                        connection.sendall(answer)


def _hello() -> bytes:
    said = {
        b"version": spop.string(b"2.0"),
        b"max-frame-size": spop.uint32(16000),
        b"capabilities": spop.string(b"pipelining"),
    }
    return spop.frame(spop.AGENT_HELLO, 0, 0, spop.pairs(said))
