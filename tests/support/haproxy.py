"""A real HAProxy with what ``ostiary door haproxy`` prints, its runtime socket, and agents that misbehave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ostiary.gateway.doors.haproxy import spop
from tests.support.gateway import SECONDS
from tests.support.socket_server import SocketServer


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


class FakeAgent(SocketServer):
    """An agent of HAProxy that greets as it should, and then does to every question what *answer* says.

    *answer* gets the numbers of a question, and gives the bytes that are sent; None: nothing is.
    """

    def __init__(self, answer: Callable[[int, int], bytes | None]) -> None:
        super().__init__()
        self.answer = answer
        self.asked = threading.Event()

    def serve(self, connection: socket.socket) -> None:
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
