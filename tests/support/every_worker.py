"""Asks every worker of a gateway: connections that stay open, so many that each worker has some."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.gateway import SECONDS, Gateway


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
def many_connections(gateway: Gateway, number: int = 12) -> Iterator[list[http.client.HTTPSConnection]]:
    """So many that each worker has some."""
    connections = [kept_alive(gateway) for _ in range(number)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


def answers_of_all(gateway: Gateway, token: str, path: str) -> set[int]:
    """What every worker says; 0 for a connection that was cut."""
    with many_connections(gateway) as connections:
        return {status(connection, path, token) for connection in connections}
