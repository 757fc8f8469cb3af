"""A replica that was stopped for a while and wakes up, and replicas whose clocks are wrong by an hour.

``PAUSE_SECONDS=60 pytest tests/e2e/test_replica_pauses_and_clocks.py`` is the long run.
"""

from __future__ import annotations

import os
import signal
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import Login, ServedGateway
from tests.support.replicas import PODS, replica, revoke, until_known, wait_for_status
from tests.support.set_clock import SetClock
from tests.support.waiting import until

MAX_STALE = 1.0
# Longer than a replica may be without news.
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "2"))
HOUR = 3600
# How long a session lasts where its end is waited for, and how exact its end is: clocks are compared to the second.
LIFETIME, EXACT = 12.0, 2.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + 2 * PAUSE_SECONDS)]


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        yield cluster


# --- a pause ---


def test_a_replica_that_wakes_up_accepts_no_token_that_was_revoked_while_it_slept(
    replica_store: dict[str, Any], cluster: Cluster, ca: trustme.CA, tmp_path: Path
) -> None:
    tokens = {"maxStale": f"{MAX_STALE:g}s"}
    with (
        replica(tmp_path / "awake", ca, cluster, replica_store) as awake,
        replica(tmp_path / "asleep", ca, cluster, replica_store, tokens=tokens) as asleep,
    ):
        root, kept, revoked = awake.login("root").token, awake.login("alice"), awake.login("alice")
        wait_for_status(200, asleep, kept.token)
        with ExitStack() as stack:
            # Several, so that one of them is the very first thing that it reads.
            connections = [stack.enter_context(asleep.connect()) for _ in range(5)]
            for connection in connections:
                until(lambda: _status(connection, revoked.token) == 200)  # noqa: B023  # called at once
            with _stopped(asleep):
                woken_at = time.monotonic() + PAUSE_SECONDS
                revoke(awake, root, "session", revoked.session)
                for connection in connections:
                    _send(connection, revoked.token)
                until(lambda: time.monotonic() > woken_at, seconds=2 * PAUSE_SECONDS + 30)
            answers = [_receive(connection) for connection in connections]
        assert not [status for status in answers if status not in (401, 503)], answers
        wait_for_status(200, asleep, kept.token)
        assert until_known(asleep, revoked.token) == 401
        until(lambda: asleep.probe("/readyz").status_code == 200)


@contextmanager
def _stopped(gateway: ServedGateway) -> Iterator[None]:
    """All its processes."""
    os.killpg(gateway.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(gateway.pid, signal.SIGCONT)


def _status(connection: ssl.SSLSocket, token: str) -> int:
    _send(connection, token)
    return _receive(connection)


def _send(connection: ssl.SSLSocket, token: str) -> None:
    head = f"GET {PODS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    connection.sendall(head.encode())


def _receive(connection: ssl.SSLSocket) -> int:
    """The status of one answer, which is read to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(headers.get(b"content-length", b"0")):
        body += connection.recv(65536)
    return int(head.split()[1])


# --- clocks ---


@contextmanager
def _replicas_with_wrong_clocks(
    store: dict[str, Any], cluster: Cluster, ca: trustme.CA, folder: Path, **sections: Any
) -> Iterator[tuple[ServedGateway, ServedGateway, ServedGateway]]:
    """One that is right, one that is an hour ahead, and one that is an hour behind."""
    with ExitStack() as stack:
        gateways = []
        for name, seconds in (("right", 0), ("ahead", HOUR), ("behind", -HOUR)):
            own = folder / name
            own.mkdir()
            clock = SetClock(own)
            clock.set(seconds)
            environment = clock.environment
            gateways.append(
                stack.enter_context(replica(own / "site", ca, cluster, store, environment=environment, **sections))
            )
        right, ahead, behind = gateways
        yield right, ahead, behind


@pytest.mark.needs("faketime")
def test_a_revocation_ends_what_was_before_it_and_nothing_that_comes_after_it_whatever_the_clocks_say(
    replica_store: dict[str, Any], cluster: Cluster, ca: trustme.CA, tmp_path: Path
) -> None:
    with _replicas_with_wrong_clocks(replica_store, cluster, ca, tmp_path) as gateways:
        root = gateways[0].login("root").token
        for revoked_at in gateways:
            before = [gateway.login("alice").token for gateway in gateways]
            for gateway in gateways:
                for token in before:
                    wait_for_status(200, gateway, token)
            revoke(revoked_at, root, "user", "alice")
            after = [gateway.login("alice").token for gateway in gateways]
            for gateway in gateways:
                for token in before:
                    wait_for_status(401, gateway, token)
                for token in after:
                    wait_for_status(200, gateway, token)


@pytest.mark.needs("faketime")
def test_a_session_lasts_as_long_as_it_should_wherever_it_began_and_wherever_it_is_used(
    replica_store: dict[str, Any], cluster: Cluster, ca: trustme.CA, tmp_path: Path
) -> None:
    tokens = {"lifetime": f"{LIFETIME:g}s", "session": f"{LIFETIME:g}s"}
    with _replicas_with_wrong_clocks(replica_store, cluster, ca, tmp_path, tokens=tokens) as gateways:
        sessions = [_sign_in(gateway) for gateway in gateways]
        wrong: list[str] = []
        until(lambda: _all_have_ended(gateways, sessions, wrong), seconds=LIFETIME + 60)
        assert not wrong


def _sign_in(gateway: ServedGateway) -> tuple[Login, float, float]:
    """The session, and between which two moments it began."""
    began = time.monotonic()
    return gateway.login("alice"), began, time.monotonic()


def _all_have_ended(
    gateways: tuple[ServedGateway, ...], sessions: list[tuple[Login, float, float]], wrong: list[str]
) -> bool:
    """Ask everywhere; what is too early or too late, whenever the answers came, goes to *wrong*."""
    ended = []
    for number, gateway in enumerate(gateways):
        for origin, (login, earliest, latest) in enumerate(sessions):
            asked = time.monotonic()
            try:
                status = gateway.get(PODS, login.token).status_code
            except httpx.RemoteProtocolError:
                status = None  # in flight when the session ended, so it was cut
            answered = time.monotonic()
            ended.append(status == 401)
            if status == 200 and asked > latest + LIFETIME + EXACT:
                wrong.append(f"replica {number}: session of {origin} accepted {asked - latest:.1f} s after its begin")
            if status == 401 and answered < earliest + LIFETIME - EXACT:
                wrong.append(f"replica {number}: session of {origin} ended {answered - earliest:.1f} s after its begin")
    return all(ended)
