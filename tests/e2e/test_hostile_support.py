"""The bad upstreams do what their names say; a client written out by hand looks at their bytes."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trustme

from tests.support.cluster.hostile import BEHAVIOURS, HONEST, SMUGGLED, Hostile, close, send


@contextmanager
def connected(upstream: Hostile, ca: trustme.CA | None = None) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=30) as connection:
        if ca is None:
            yield connection
            return
        context = ssl.create_default_context()
        ca.configure_trust(context)
        with context.wrap_socket(connection, server_hostname="localhost", suppress_ragged_eofs=False) as wrapped:
            yield wrapped


def ask(connection: socket.socket, path: str) -> None:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := connection.recv(length - len(data))):
        data += more
    return data


@pytest.fixture
def upstream() -> Iterator[Hostile]:
    with Hostile() as upstream:
        yield upstream


@pytest.mark.parametrize("name", [name for name in BEHAVIOURS if not name.startswith("stall")])
def test_every_behaviour_can_be_asked_for_and_given_up(upstream: Hostile, name: str) -> None:
    with connected(upstream) as connection:
        ask(connection, f"/{name}")
        if name.startswith("reset"):
            with pytest.raises(ConnectionResetError):
                read(connection, 1000)
        else:
            answer = connection.recv(65536)
            assert (answer == b"") == (name == "close-without-answer")


@pytest.mark.parametrize("name", ["stall-without-answer", "stall-in-head", "stall-in-body"])
def test_a_stalled_answer_goes_on_when_released(upstream: Hostile, name: str) -> None:
    with connected(upstream) as connection:
        ask(connection, f"/{name}")
        assert upstream.stalled.wait(30)
        upstream.release()
        assert read(connection, len(HONEST)) == HONEST


def test_giving_up_a_stalled_answer_is_noticed(upstream: Hostile) -> None:
    with connected(upstream) as connection:
        ask(connection, "/stall-in-body")
        assert upstream.stalled.wait(30)
    assert upstream.abandoned.wait(30)


def test_giving_up_an_endless_answer_is_noticed(upstream: Hostile) -> None:
    with connected(upstream) as connection:
        ask(connection, "/body-without-end")
        assert connection.recv(1) == b"H"
    assert upstream.abandoned.wait(30)


def test_other_paths_are_answered_honestly_and_their_connection_is_kept(ca: trustme.CA) -> None:
    with Hostile(ca) as upstream, connected(upstream, ca) as connection:
        for _ in range(2):
            ask(connection, "/fine")
            assert read(connection, len(HONEST)) == HONEST
        assert [(heard.connection, heard.target) for heard in upstream.requests] == [(1, b"/fine")] * 2


@pytest.mark.parametrize("tls", [False, True])
def test_a_path_can_be_scripted(ca: trustme.CA, tls: bool) -> None:
    authority = ca if tls else None
    with Hostile(authority) as upstream, connected(upstream, authority) as connection:
        upstream.script("/mine", send(SMUGGLED), close)
        ask(connection, "/mine")
        assert read(connection, 1000) == SMUGGLED
