"""The HTTP API on its socket: a request has no body, and whoever is not named holds no place."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import trustme

from ostiary.registry.daemon import server as http_api
from ostiary.registry.daemon.server import HttpApi
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.model import ProvidersConfig
from tests.support.http_server import server_context

NAME = "gateway.example.com"
SMUGGLED = b"POST /v1/credentials/a.registry.io/secret/app HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTH = b"Content-Length: %d" % len(SMUGGLED)

Connect = Callable[[str], ssl.SSLSocket]


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """Opens a connection to a running API, with a certificate for the given name."""
    authority = trustme.CA()
    context = server_context(authority, "localhost", client_certificates=ssl.CERT_REQUIRED)
    listener = socket.create_server(("127.0.0.1", 0))
    keyring = Keyring(ProvidersConfig(()), bin_dir="/nonexistent")
    api = HttpApi(listener, context=lambda: context, keyring=lambda: keyring, clients=[NAME])
    api.start()

    def open_connection(name: str) -> ssl.SSLSocket:
        client = ssl.create_default_context()
        authority.configure_trust(client)
        authority.issue_cert(name).configure_cert(client)
        plain = socket.create_connection(listener.getsockname(), timeout=5)
        return client.wrap_socket(plain, server_hostname="localhost")

    yield open_connection
    api.close()


def answers(connection: socket.socket, data: bytes) -> bytes:
    """All that comes back until the server hangs up."""
    received = b""
    with closing(connection):
        try:
            connection.sendall(data)
            while part := connection.recv(1 << 16):
                received += part
        except (ConnectionError, ssl.SSLError):
            pass
    return received


def test_a_body_is_refused_and_never_read_as_the_next_request(connect: Connect, subtests: pytest.Subtests) -> None:
    cases = [
        LENGTH,
        b"Content-Length: 0\r\n" + LENGTH,
        LENGTH + b"\r\nContent-Length: 0",
        b"Content-Length: 0, %d" % len(SMUGGLED),
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding:",
        b"no header\r\n" + LENGTH,
        b"Content-Length : %d" % len(SMUGGLED),
        LENGTH + b"\r\nExpect: 100-continue",
        LENGTH + b"\r\nConnection: keep-alive",
    ]
    for line in [b"GET /healthz", b"GET /v1/credentials/x", b"POST /else", b"POST /v1/credentials/a.io/x", b"PUT /x"]:
        for headers in cases:
            with subtests.test(line=line, headers=headers):
                received = answers(connect(NAME), line + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n" + SMUGGLED)
                assert received.startswith(b"HTTP/1.1 400 ")
                assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("line", [b"GET /v1/credentials/x", b"GET /else", b"POST /else", b"POST /v1/credentials/x"])
def test_whatever_is_refused_ends_the_connection(connect: Connect, line: bytes) -> None:
    received = answers(connect(NAME), line + b" HTTP/1.1\r\nHost: x\r\n\r\n" + SMUGGLED)
    assert received.count(b"HTTP/1.1 4") == received.count(b"HTTP/1.1 ") == 1


def test_a_connection_serves_many_requests(connect: Connect) -> None:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connect(NAME)
    with closing(connection):
        for method, path in (("GET", "/healthz"), ("POST", "/v1/credentials/a.io/x"), ("GET", "/healthz")):
            connection.request(method, path)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read()), answer.will_close) == (200, True, False)


def test_a_certificate_for_another_name_holds_no_place(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ostiary.registry"):
        # Nothing is sent, and yet the server hangs up at once.
        assert answers(connect("stranger.example.com"), b"") == b""
    assert "its certificate is for stranger.example.com" in caplog.text


def test_a_place_is_free_again_when_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "MOST_CONNECTIONS", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    server = http_api._CredentialListener(listener, lambda: None, lambda: None, frozenset())  # type: ignore[arg-type,return-value]

    def fail(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    with closing(server.socket), monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for _ in range(3):
            with socket.create_connection(listener.getsockname(), timeout=5) as connection:
                server.handle_request()
                assert connection.recv(1) == b""
    assert server.verify_request(None, None)
