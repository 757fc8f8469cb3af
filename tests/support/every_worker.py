"""Asks every worker of a gateway: connections that stay open, as many as it takes until each worker has one."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.gateway import SECONDS, Gateway, ServedGateway


def kept_alive(gateway: Gateway) -> http.client.HTTPSConnection:
    """A connection that a reload must not drop: it does not connect a second time by itself."""
    connection = http.client.HTTPSConnection("localhost", gateway.port, timeout=SECONDS, context=gateway.trust)
    connection.connect()
    connection.auto_open = 0
    return connection


def status(connection: http.client.HTTPConnection, path: str, token: str) -> int:
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
    except (http.client.RemoteDisconnected, ConnectionError):
        return 0
    return answer.status


@contextmanager
def many_connections(gateway: ServedGateway, number: int = 12) -> Iterator[list[http.client.HTTPSConnection]]:
    """At least so many, and on until each worker has one: which of them takes a connection is the system's choice."""
    connections: list[http.client.HTTPSConnection] = []
    try:
        without = gateway.workers()
        while without or len(connections) < number:
            assert len(connections) < 100 * number, f"workers {without} took no connection"
            connections.append(kept_alive(gateway))
            without -= {worker for worker in without if _has_accepted(worker, connections[-1])}
        yield connections
    finally:
        for connection in connections:
            connection.close()


def _has_accepted(worker: int, connection: http.client.HTTPSConnection) -> bool:
    client, server = connection.sock.getsockname()[1], connection.sock.getpeername()[1]
    ports = (f":{server:04X}", f":{client:04X}")
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{worker}/net/{table}").read_text().splitlines()[1:]:
            columns = row.split()
            if columns[1].endswith(ports[0]) and columns[2].endswith(ports[1]):
                return f"socket:[{columns[9]}]" in _open_files(worker)
    return False


def _open_files(process: int) -> set[str]:
    names = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            names.add(os.readlink(entry))
    return names


def answers_of_all(gateway: ServedGateway, token: str, path: str) -> set[int]:
    """What every worker says; 0 for a connection that was cut."""
    with many_connections(gateway) as connections:
        return {status(connection, path, token) for connection in connections}
