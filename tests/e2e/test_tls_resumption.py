"""TLS sessions are resumed at whichever worker a client reaches, and with upstreams; never where certificates count."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import ServedGateway, Site, role
from tests.support.metrics import samples
from tests.support.tls_in_memory import VERSIONS, trusting
from tests.support.waiting import until

PODS = "/api/v1/namespaces/team/pods"
FILES = {"certificate": "server.pem", "key": "server.key"}
WORKERS, VISITS = 2, 12


@contextmanager
def serving(folder: Path, ca: trustme.CA, *, workers: int = 1, resumption: bool = True) -> Iterator[ServedGateway]:
    """*resumption* is for its clients and for its upstream."""
    site = Site(folder, ca)
    site.users("alice")
    site.policy(role("team", "pods", User="alice"))
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        # Connections are closed before the next request comes.
        upstream = site.impersonating(cluster, timeouts={"idle": "1ms"})
        upstream["tls"]["resumption"] = resumption
        listen = {"workers": workers, "tls": {**FILES, "resumption": resumption}}
        with site.serving(listen=listen, upstreams=[upstream]) as gateway:
            until(lambda: gateway.probe("/readyz").status_code == 200)
            yield gateway


def visit(gateway: ServedGateway, client: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bool, Any]:
    """Whether the session was resumed, and the one to resume next."""
    plain = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
    with client.wrap_socket(plain, server_hostname="localhost", session=session) as tls:
        tls.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while tls.recv(65536):
            pass
        return bool(tls.session_reused), tls.session


def handshakes(gateway: ServedGateway) -> dict[tuple[str, str], float]:
    """By side and result."""
    page = samples(gateway.probe("/metrics").content)
    name = "ostiary_gateway_tls_handshakes_total"
    return {
        (dict(labels)["side"], dict(labels)["result"]): value for (each, labels), value in page.items() if each == name
    }


def until_upstream(gateway: ServedGateway, result: str) -> None:
    """Send requests until there were two more such handshakes with the upstream."""
    token = gateway.login("alice").token
    before = handshakes(gateway).get(("upstream", result), 0)
    while handshakes(gateway).get(("upstream", result), 0) < before + 2:
        assert gateway.get(PODS, token).status_code == 200


def test_a_client_resumes_whichever_worker_it_reaches_and_so_does_the_gateway(tmp_path: Path, ca: trustme.CA) -> None:
    with serving(tmp_path, ca, workers=WORKERS) as gateway:
        for number, version in enumerate(VERSIONS, 1):
            client = trusting(ca, version)
            resumed, session = visit(gateway, client, None)
            assert not resumed
            assert [visit(gateway, client, session)[0] for _ in range(VISITS)] == [True] * VISITS
            seen = {result: value for (side, result), value in handshakes(gateway).items() if side == "listener"}
            assert seen == {"full": number, "resumed": number * VISITS}
        until_upstream(gateway, "resumed")


@pytest.mark.slow
def test_a_worker_that_replaces_another_one_resumes_and_a_new_certificate_does_not(
    tmp_path: Path, ca: trustme.CA
) -> None:
    client = trusting(ca)
    with serving(tmp_path, ca, workers=2) as gateway:
        _, session = visit(gateway, client, None)
        os.kill(min(gateway.workers()), signal.SIGKILL)
        gateway.line("a worker exited and is being replaced")
        until(lambda: gateway.probe("/readyz").status_code == 200)
        assert [visit(gateway, client, session)[0] for _ in range(VISITS)] == [True] * VISITS
        gateway.site.new_certificate()
        gateway.line("the renewed certificate is in use", after=1)
        assert not any(visit(gateway, client, session)[0] for _ in range(VISITS))


def test_where_client_certificates_count_every_handshake_is_full(tmp_path: Path, ca: trustme.CA) -> None:
    """Also right after a reload that names their authority, with a session from before."""
    clients = [trusting(ca, version) for version in VERSIONS]
    with serving(tmp_path, ca) as gateway:
        sessions = []
        for client in clients:
            ca.issue_cert("me@example.test").configure_cert(client)
            _, session = visit(gateway, client, None)
            assert visit(gateway, client, session)[0]
            sessions.append(session)
        gateway.site.write_config(listen={"workers": 1, "tls": {**FILES, "clientCA": "ca.pem"}})
        gateway.signal(signal.SIGHUP)
        gateway.line("the configuration was reloaded")
        for client, session in zip(clients, sessions, strict=True):
            for _ in range(3):
                resumed, session = visit(gateway, client, session)  # noqa: PLW2901  # the one to resume next
                assert not resumed


def test_it_can_be_turned_off(tmp_path: Path, ca: trustme.CA) -> None:
    client = trusting(ca)
    with serving(tmp_path, ca, resumption=False) as gateway:
        _, session = visit(gateway, client, None)
        assert not visit(gateway, client, session)[0]
        until_upstream(gateway, "full")
        assert ("upstream", "resumed") not in handshakes(gateway)
