"""The lines of `tests.support.network` do what their settings say, and leave this machine's own network alone."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.network import Host, Line, Network

# Sends back whatever it gets.
_ECHO = """
import socket, sys, threading
server = socket.create_server((sys.argv[1], 7), backlog=8)
print("ready", flush=True)
def serve(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


@pytest.fixture(scope="module")
def host(network: Network) -> Host:
    return network.add_host()


@pytest.fixture(scope="module")
def line(network: Network, host: Host) -> Line:
    return network.connect(network.home, host)


@pytest.fixture(scope="module")
def connection(host: Host, line: Line) -> Iterator[socket.socket]:
    command = host.command("python3", "-c", _ECHO, host.address())
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            with socket.create_connection((host.address(), 7), 10) as connection:
                yield connection
        finally:
            server.kill()


def test_bytes_arrive(connection: socket.socket) -> None:
    assert _echoed(connection, b"x" * 100_000)


def test_a_delay_is_there_in_both_directions(connection: socket.socket, line: Line) -> None:
    line.set(delay=0.1)
    began = time.monotonic()
    assert _echoed(connection, b"hello")
    assert time.monotonic() - began >= 0.2
    line.set(delay=0)


def test_what_is_lost_is_sent_again(connection: socket.socket, line: Line) -> None:
    line.set(loss=0.1)
    assert _echoed(connection, b"x" * 100_000)
    line.set(loss=0)


def test_a_line_that_is_cut_carries_nothing_until_it_is_mended(connection: socket.socket, line: Line) -> None:
    line.set(cut=True)
    connection.sendall(b"late")
    connection.settimeout(0.5)
    with pytest.raises(TimeoutError):
        connection.recv(4)
    connection.settimeout(30)
    line.set(cut=False)
    assert connection.recv(4, socket.MSG_WAITALL) == b"late"


def test_two_lines_lead_to_one_host(connection: socket.socket, network: Network, host: Host) -> None:
    other = network.connect(network.home, host, plane=1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host.address(1), 7), 10)
    other.set(cut=True)
    with pytest.raises(TimeoutError):
        socket.create_connection((host.address(1), 7), 0.5)
    assert _echoed(connection, b"the other line is whole")


def test_the_machine_keeps_its_own_network() -> None:
    before = os.stat("/proc/thread-self/ns/net").st_ino
    with Network() as network:
        assert os.stat("/proc/thread-self/ns/net").st_ino != before
        network.connect(network.home, network.add_host())
    assert os.stat("/proc/thread-self/ns/net").st_ino == before


def _echoed(connection: socket.socket, data: bytes) -> bool:
    connection.sendall(data)
    received = b""
    with suppress(TimeoutError):
        while len(received) < len(data):
            received += connection.recv(len(data) - len(received))
    return received == data
