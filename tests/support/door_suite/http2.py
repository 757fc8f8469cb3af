"""Requests over HTTP/2. A proxy translates them to HTTP/1.1, where a line break in a value could start a header line.

The library validates nothing here: names and values are sent as a case has them.
"""

from __future__ import annotations

import socket

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError

from tests.support.door_cases import NORMALISES, PROXIES, Case, Headers
from tests.support.door_suite.drivers import CarryingDoor
from tests.support.door_suite.framing import HIDDEN, SMUGGLED
from tests.support.doors import Reply
from tests.support.gateway import SECONDS

# Whether a proxy rejects such a request or makes a harmless one of it is its own business.
_EITHER = dict.fromkeys(PROXIES, NORMALISES)


class Http2Door(CarryingDoor):
    """Sends each case on a connection of its own, with prior knowledge of HTTP/2."""

    def _reply(self, case: Case, token: str | None) -> Reply | None:
        try:
            with socket.create_connection(("127.0.0.1", self.client.port), SECONDS) as connection:
                return _exchange(connection, _headers(case, token), case.body)
        except (OSError, ProtocolError):
            return None


def _headers(case: Case, token: str | None) -> list[tuple[bytes, bytes]]:
    pseudo = {":method": case.method, ":scheme": "http", ":authority": case.host, ":path": case.target}
    bearer = () if token is None else (("authorization", f"Bearer {token}"),)
    lines = (*pseudo.items(), ("x-case", case.name), *bearer, *case.headers)
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]


def _exchange(connection: socket.socket, headers: list[tuple[bytes, bytes]], body: bytes) -> Reply | None:
    """The reply; None if the proxy resets the stream or ends the connection."""
    configuration = H2Configuration(
        validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding=False
    )
    http2 = H2Connection(configuration)
    http2.initiate_connection()
    http2.send_headers(1, headers, end_stream=not body)
    if body:
        http2.send_data(1, body, end_stream=True)
    received: dict[str, str] = {}
    content = b""
    while True:
        connection.sendall(http2.data_to_send())
        data = connection.recv(65536)
        if not data:
            return None
        for event in http2.receive_data(data):
            match event:
                case ResponseReceived(headers=headers):
                    received = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
                case DataReceived(data=part):
                    content += part
                case StreamEnded():
                    return Reply(int(received[":status"]), tuple(received.items()), content)
                case StreamReset() | ConnectionTerminated():
                    return None


def _either(name: str, target: str = "/x", method: str = "GET", headers: Headers = (), body: bytes = b"") -> Case:
    return Case(f"http2: {name}", target, method, headers=headers, body=body, status=400, differs=_EITHER)


CLAIMED = (
    *("x-remote-user", "x_remote_user", "x_remote-user", "x.remote.user", "X-REMOTE-USER", "X-Remote-User"),
    *("x-remote-group", "x-remote-extra-scope", "x-forwarded-user", "x-http-method", "impersonate-anything"),
)
CLAIM = "\r\nX-Remote-User: evil"
INJECTIONS: dict[str, Headers] = {
    "CR LF in a value": (("x-mine", f"a{CLAIM}"),),
    "LF in a value": (("x-mine", "a\nX-Remote-User: evil"),),
    "CR in a value": (("x-mine", "a\rX-Remote-User: evil"),),
    "CR LF in a name": (("x-mine: a\r\nx-remote-user", "evil"),),
    "a colon in a name": (("x-remote-user: evil\r\nx", "y"),),
    "a space in a name": (("x-remote-user ", "evil"),),
    "a request in a value": (("x-mine", f"a\r\n\r\n{SMUGGLED.decode()}"),),
    "two paths": ((":path", "/denied"),),
    "two authorities": ((":authority", "cluster.example"),),
    "another Host": (("host", "cluster.example"),),
    "who the user is in Connection": (("connection", "X-Remote-User"),),
}
BODIES: dict[str, tuple[Headers, bytes]] = {
    "chunks": ((("transfer-encoding", "chunked"),), HIDDEN),
    "a length of zero": ((("content-length", "0"),), SMUGGLED),
    "two lengths": ((("content-length", "0"), ("content-length", "5")), SMUGGLED),
    "chunks by CR LF": ((("x-mine", "a\r\nTransfer-Encoding: chunked"),), HIDDEN),
}
TARGETS = (
    *("/x/../denied", "/x/%2e%2e/denied", "//denied", "/./denied", "\\denied", "/%2fdenied", "/denied/../x"),
    *("/denied#x", "http://shop.example/denied", "denied", f"/x HTTP/1.1{CLAIM}\r\nX-Mine: a"),
)
PLAIN = Case("http2: plain")
CASES = [
    PLAIN,
    Case("http2: denied", "/denied", status=403),
    *(Case(f"http2: {method} without a token", method=method, user=None, status=401) for method in ("GET", "OPTIONS")),
    Case("http2: PROPFIND without a token", method="PROPFIND", user=None, status=401),
    Case("http2: an unknown token", user="unknown", status=401),
    *(_either(f"claim {name}", headers=((name, "evil"),)) for name in CLAIMED),
    *(_either(name, headers=headers) for name, headers in INJECTIONS.items()),
    *(_either(name, method="POST", headers=headers, body=body) for name, (headers, body) in BODIES.items()),
    *(_either(f"target {target!r}", target) for target in TARGETS),
    _either("CR LF in the method", method=f"GET /x HTTP/1.1{CLAIM}\r\nX-Mine: a"),
]
