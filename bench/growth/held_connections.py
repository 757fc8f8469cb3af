"""Connections that are open and say nothing: each has had one answer, and waits for the next request of its client.

    python -m bench.growth.held_connections PORT NUMBER < requests

A process of its own: a machine allows one process so many descriptors. Reads the requests from its stdin, prints
"ready" when all connections have had their answers, and how many are still open when it is sent SIGTERM.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


@contextmanager
def held_connections(port: int, number: int, requests: Sequence[str]) -> Iterator[None]:
    """So many to *port*, each after one of the *requests*; raises if not all are open in the end."""
    command = [sys.executable, "-m", __name__, str(port), str(number)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdin, process.stdout:
        process.stdin.write("\0".join(requests).encode())
        process.stdin.close()
        said = process.stdout.readline()
        if said != b"ready\n":
            raise RuntimeError(f"connections to port {port}: {said!r}")
        yield
        process.terminate()
        still_open = int(process.stdout.readline())
    if still_open != number:
        raise RuntimeError(f"of {number} connections to port {port}, {still_open} were still open")


def _hold(port: int, number: int, requests: Sequence[bytes]) -> None:
    # Blocked until it is waited for: it may come at once.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    connections = []
    for place in range(number):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(requests[place % len(requests)])
        _read_answer(connection)
        connections.append(connection)
    print("ready", flush=True)
    signal.sigwait([signal.SIGTERM])
    print(sum(map(_is_open, connections)), flush=True)


def _read_answer(connection: socket.socket) -> None:
    data = b""
    while _HEAD_END not in data:
        data += _receive(connection)
    head, _, body = data.partition(_HEAD_END)
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(head.decode())
    length = int(head.lower().partition(_LENGTH)[2].split(b"\r\n", 1)[0])
    while len(body) < length:
        body += _receive(connection)


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise RuntimeError("a connection was closed in the middle of an answer")
    return data


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True


if __name__ == "__main__":
    _hold(int(sys.argv[1]), int(sys.argv[2]), [text.encode() for text in sys.stdin.read().split("\0")])
