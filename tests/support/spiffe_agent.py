"""A SPIFFE agent's Workload API on a Unix socket: gRPC over HTTP/2, as far as JWT-SVIDs go.

It insists on what the specification demands of a caller (the header ``workload.spiffe.io``), and answers as SPIRE does.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

NO_IDENTITY = "no identity issued"


class SpiffeAgent:
    """*sign* makes the token for an audience. `refusal` is a gRPC status and message in place of a token."""

    def __init__(self, path: Path, sign: Callable[[str], str]) -> None:
        self.path, self._sign = path, sign
        self.endpoint = f"unix://{path}"
        self.audiences: list[str] = []
        self.refusal: tuple[int, str] | None = None
        self.raw: bytes | None = None
        """Bytes that are sent in place of any answer, if set."""

    @contextmanager
    def running(self) -> Iterator[SpiffeAgent]:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen(8)
            thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join(20)
                assert not thread.is_alive()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(20)
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        if self.raw is not None:
            connection.sendall(self.raw)
            return
        http = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        http.initiate_connection()
        headers: dict[str, str] = {}
        body = b""
        while True:
            connection.sendall(http.data_to_send())
            received = connection.recv(65536)
            if not received:
                return
            for event in http.receive_data(received):
                if isinstance(event, RequestReceived):
                    headers = {str(name): str(value) for name, value in event.headers or ()}
                elif isinstance(event, DataReceived):
                    body += event.data or b""
                elif isinstance(event, StreamEnded):
                    self._answer(http, event.stream_id or 0, headers, body)
                    connection.sendall(http.data_to_send())

    def _answer(self, http: H2Connection, stream: int, headers: dict[str, str], body: bytes) -> None:
        status, message = self.refusal or (0, "")
        if headers.get("workload.spiffe.io") != "true":
            status, message = 3, "security header missing from request"
        elif headers[":path"] != "/SpiffeWorkloadAPI/FetchJWTSVID":
            status, message = 12, "unknown method"
        http.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        if status == 0:
            # One audience: tag, length in a byte or two, text.
            length = body[6] if body[6] < 0x80 else (body[6] & 0x7F) | body[7] << 7
            audience = body[-length:].decode()
            self.audiences.append(audience)
            svid = _field(1, b"spiffe://example.org/robot") + _field(2, self._sign(audience).encode())
            answer = _field(1, svid)
            http.send_data(stream, b"\0" + len(answer).to_bytes(4, "big") + answer)
        trailers = [("grpc-status", str(status)), ("grpc-message", message.replace(" ", "%20"))]
        http.send_headers(stream, trailers, end_stream=True)


def _field(number: int, content: bytes) -> bytes:
    length = len(content)
    size = bytes([length]) if length < 0x80 else bytes([length & 0x7F | 0x80, length >> 7])
    return bytes([number << 3 | 2]) + size + content
