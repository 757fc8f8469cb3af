"""A load of ``Authorization/Check``, as an Envoy sends it: few connections, many calls at a time on each.

Started by `bench.grpc_door` as a process of its own. All bytes are made before the measurement: what a loader costs
must not be seen in the figure. It understands as much of HTTP/2 as it needs to count answers.

    python -m bench.check_load PORT SECONDS MESSAGES SECRET     prints: answers, seconds
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys
import time
from pathlib import Path

from hpack import Encoder

CONNECTIONS, AT_ONCE = 4, 16
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
METHOD = b"/envoy.service.auth.v3.Authorization/Check"
# What an allowing answer holds.
ALLOWED = b"x-remote-user"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_LARGEST_WINDOW = 2**31 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def read_messages(path: Path) -> list[bytes]:
    """Messages, each with the five bytes of gRPC before it; the file has them one after the other."""
    data, messages, position = path.read_bytes(), [], 0
    while position < len(data):
        end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")
        messages.append(data[position:end])
        position = end
    return messages


class Connection:
    """One connection with `AT_ONCE` calls; each answer begins the next call."""

    def __init__(self, port: int, messages: list[bytes], secret: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encoder = Encoder()
        self._headers = [
            *((b":method", b"POST"), (b":path", METHOD), (b":authority", b"ostiary-gateway"), (b":scheme", b"http")),
            *((b"te", b"trailers"), (b"grpc-timeout", b"15000m"), (b"content-type", b"application/grpc")),
            (b"x-ostiary-door", secret),
        ]
        self._messages, self._next, self._stream = messages, 0, 1
        self._block = b""
        self._data = b""
        self.answers = 0
        window = struct.pack(">HI", 4, _LARGEST_WINDOW)
        update = (_LARGEST_WINDOW - 65535).to_bytes(4, "big")
        self.socket.sendall(PREFACE + frame(_SETTINGS, 0, 0, window) + frame(_WINDOW_UPDATE, 0, 0, update))
        self.socket.sendall(b"".join(self._call() for _ in range(AT_ONCE)))

    def _call(self) -> bytes:
        if self._stream < 5:
            # The first ones teach the other side the headers; the others name them.
            self._block = self._encoder.encode(self._headers)
        stream, self._stream = self._stream, self._stream + 2
        self._next = (self._next + 1) % len(self._messages)
        return frame(_HEADERS, _END_HEADERS, stream, self._block) + frame(
            _DATA, _END_STREAM, stream, self._messages[self._next]
        )

    def read(self) -> None:
        received = self.socket.recv(262144)
        if not received:
            raise RuntimeError("the connection has ended")
        data, position, out = self._data + received, 0, []
        while len(data) - position >= 9:
            end = position + 9 + int.from_bytes(data[position : position + 3], "big")
            if end > len(data):
                break
            kind, flags = data[position + 3], data[position + 4]
            if kind == _DATA and ALLOWED not in data[position:end]:
                raise RuntimeError(f"not allowed: {data[position:end]!r}")
            if kind == _HEADERS and flags & _END_STREAM:
                self.answers += 1
                out.append(self._call())
            elif kind == _SETTINGS and not flags & _ACK:
                out.append(frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _GOAWAY:
                raise RuntimeError(f"the connection ends: {data[position:end]!r}")
            position = end
        self._data = data[position:]
        if out:
            self.socket.sendall(b"".join(out))


def main(port: int, seconds: float, messages: Path, secret: str) -> None:
    every = read_messages(messages)
    share = len(every) // CONNECTIONS
    connections = [
        Connection(port, every[number * share :] + every[: number * share], secret.encode())
        for number in range(CONNECTIONS)
    ]
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    began = time.perf_counter()
    until = began + seconds
    while time.perf_counter() < until:
        for key, _ in selector.select(1.0):
            key.data.read()
    print(sum(connection.answers for connection in connections), time.perf_counter() - began)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
