"""In the place of the gateway's gRPC listener: answers every call as a test says, right or wrong.

It speaks HTTP/2 by the library ``h2``. `WRONG` has the ways in which an answer can be none.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded
from h2.exceptions import ProtocolError

from ostiary_gateway.extauth.grpc import framed
from ostiary_gateway.wire.envoy_check import allowing_response, denying_response
from ostiary_gateway.wire.protobuf import bytes_field, number_field
from tests.support.gateway import SECONDS
from tests.support.socket_server import SocketServer

ALLOWED = allowing_response([(b"x-remote-user", b"alice")], [])
UNAUTHORIZED = denying_response(401, [(b"www-authenticate", b"Bearer")], b"")
OK_HEAD = [(":status", "200"), ("content-type", "application/grpc")]

# Answers the call on this stream of the connection.
Answer = Callable[[H2Connection, int], None]


def answering(message: bytes) -> Answer:
    """As a server of gRPC does."""

    def answer(http: H2Connection, stream: int) -> None:
        http.send_headers(stream, OK_HEAD)
        http.send_data(stream, framed(message))
        http.send_headers(stream, [("grpc-status", "0")], end_stream=True)

    return answer


def failing(*headers: tuple[str, str]) -> Answer:
    """With headers only."""

    def answer(http: H2Connection, stream: int) -> None:
        http.send_headers(stream, list(headers), end_stream=True)

    return answer


def _without_trailers(http: H2Connection, stream: int) -> None:
    http.send_headers(stream, OK_HEAD)
    http.send_data(stream, framed(ALLOWED), end_stream=True)


def _allowed_but_failed(http: H2Connection, stream: int) -> None:
    http.send_headers(stream, OK_HEAD)
    http.send_data(stream, framed(ALLOWED))
    http.send_headers(stream, [("grpc-status", "13")], end_stream=True)


def _half_a_message(http: H2Connection, stream: int) -> None:
    http.send_headers(stream, OK_HEAD)
    http.send_data(stream, framed(ALLOWED)[:-4])
    http.send_headers(stream, [("grpc-status", "0")], end_stream=True)


def _no_message(http: H2Connection, stream: int) -> None:
    http.send_headers(stream, OK_HEAD)
    http.send_headers(stream, [("grpc-status", "0")], end_stream=True)


def _reset(http: H2Connection, stream: int) -> None:
    http.reset_stream(stream)


def _hang_up(http: H2Connection, stream: int) -> None:
    raise OSError


def _garbage(http: H2Connection, stream: int) -> None:
    http._data_to_send += b"\xff" * 64


WRONG: dict[str, Answer] = {
    "permission denied": failing(*OK_HEAD, ("grpc-status", "7")),
    "unavailable": failing(*OK_HEAD, ("grpc-status", "14")),
    "OK without a message": failing(*OK_HEAD, ("grpc-status", "0")),
    "no message": _no_message,
    "500": failing((":status", "500")),
    "503": failing((":status", "503")),
    "302": failing((":status", "302"), ("location", "/elsewhere")),
    "an HTML page": failing((":status", "200"), ("content-type", "text/html")),
    "no message of protobuf": answering(b"\xff\xff\xff"),
    "allowed, but failed": _allowed_but_failed,
    "half a message": _half_a_message,
    "without trailers": _without_trailers,
    "reset": _reset,
    "denied without a status": answering(bytes_field(1, number_field(1, 7))),
    "allowing headers, but denied": answering(bytes_field(1, number_field(1, 16)) + bytes_field(3, b"")),
    "end of the connection": _hang_up,
    "garbage": _garbage,
}


class FakeCheckServer(SocketServer):
    """Answers calls by `answer`; while that is None, it says nothing, and then hangs up."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Answer | None = answering(UNAUTHORIZED)
        self.asked, self.go_on = threading.Event(), threading.Event()

    def serve(self, connection: socket.socket) -> None:
        http = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False))
        http.initiate_connection()
        with connection, suppress(OSError, ProtocolError):
            connection.sendall(http.data_to_send())
            while data := connection.recv(65536):
                for event in http.receive_data(data):
                    if isinstance(event, StreamEnded):
                        self._answer(http, event.stream_id)
                connection.sendall(http.data_to_send())

    def _answer(self, http: H2Connection, stream: int) -> None:
        self.asked.set()
        if self.answer is None:
            self.go_on.wait(SECONDS)
            raise OSError
        self.answer(http, stream)
