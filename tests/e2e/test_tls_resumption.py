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

PODS = "/api/v1/namespaces/team/pods"
FILES = {"certificate": "server.pem", "key": "server.key"}
WORKERS, VISITS = 3, 12
VERSION = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice")
    site.policy(role("team", "pods", User="alice"))
    return site


@contextmanager
def serving(
    site: Site, *, workers: int = WORKERS, tls: dict[str, Any] = FILES, **sections: Any
) -> Iterator[ServedGateway]:
    with site.serving(listen={"workers": workers, "tls": tls}, **sections) as gateway:
        while gateway.probe("/readyz").status_code != 200:
            pass
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


@VERSION
def test_a_client_resumes_whichever_worker_it_reaches(version: ssl.TLSVersion, site: Site, ca: trustme.CA) -> None:
    client = trusting(ca, version)
    with serving(site) as gateway:
        resumed, session = visit(gateway, client, None)
        assert not resumed
        assert [visit(gateway, client, session)[0] for _ in range(VISITS)] == [True] * VISITS
        assert handshakes(gateway) == {("listener", "full"): 1, ("listener", "resumed"): VISITS}


def test_a_worker_that_replaces_another_one_resumes_and_a_new_certificate_does_not(site: Site, ca: trustme.CA) -> None:
    client = trusting(ca)
    with serving(site, workers=2) as gateway:
        _, session = visit(gateway, client, None)
        os.kill(min(gateway.workers()), signal.SIGKILL)
        gateway.line("a worker exited and is being replaced")
        while gateway.probe("/readyz").status_code != 200:
            pass
        assert [visit(gateway, client, session)[0] for _ in range(VISITS)] == [True] * VISITS
        site.new_certificate()
        gateway.line("the renewed certificate is in use", after=1)
        assert not any(visit(gateway, client, session)[0] for _ in range(VISITS))


@VERSION
def test_where_client_certificates_count_every_handshake_is_full(
    version: ssl.TLSVersion, site: Site, ca: trustme.CA
) -> None:
    """Also right after a reload that names their authority, with a session from before."""
    client = trusting(ca, version)
    ca.issue_cert("me@example.test").configure_cert(client)
    with serving(site, workers=1) as gateway:
        _, session = visit(gateway, client, None)
        assert visit(gateway, client, session)[0]
        site.write_config(listen={"workers": 1, "tls": {**FILES, "clientCA": "ca.pem"}})
        gateway.signal(signal.SIGHUP)
        gateway.line("the configuration was reloaded")
        for _ in range(3):
            resumed, session = visit(gateway, client, session)
            assert not resumed


def test_it_can_be_turned_off(site: Site, ca: trustme.CA) -> None:
    client = trusting(ca)
    with serving(site, workers=1, tls={**FILES, "resumption": False}) as gateway:
        _, session = visit(gateway, client, None)
        assert not visit(gateway, client, session)[0]


@pytest.mark.parametrize("resumption", [True, False])
def test_connections_to_an_upstream_are_resumed(resumption: bool, site: Site, ca: trustme.CA) -> None:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        # They are closed before the next request comes.
        upstream = site.impersonating(cluster, timeouts={"idle": "10ms"})
        upstream["tls"]["resumption"] = resumption
        with serving(site, workers=1, upstreams=[upstream]) as gateway:
            token = gateway.login("alice").token
            result = "resumed" if resumption else "full"
            before = handshakes(gateway).get(("upstream", result), 0)
            while handshakes(gateway).get(("upstream", result), 0) < before + 2:
                assert gateway.get(PODS, token).status_code == 200
            if not resumption:
                assert ("upstream", "resumed") not in handshakes(gateway)
