"""What tests of exec, port-forward and watch share: kubectl's two transports, a server to reach, a line to read."""

from __future__ import annotations

import socket
import subprocess

from tests.support.socket_server import SocketServer

WEBSOCKET: dict[str, str] = {}
SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}


def line(process: subprocess.Popen[str]) -> str:
    """The next line that *process* prints; empty at its end."""
    assert process.stdout is not None
    return process.stdout.readline()


class EchoServer(SocketServer):
    """Sends back, in capitals, what it receives."""

    def serve(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data.upper())
