"""What tests of exec, port-forward and watch share: kubectl's two transports, a server to reach, a line to read."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WEBSOCKET: dict[str, str] = {}
SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}


def line(process: subprocess.Popen[str]) -> str:
    """The next line that *process* prints; empty at its end."""
    assert process.stdout is not None
    return process.stdout.readline()


@contextmanager
def echo_server() -> Iterator[int]:
    """Says back, in capitals, what it is told, until the other side has finished; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    while data := connection.recv(65536):
                        connection.sendall(data.upper())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
