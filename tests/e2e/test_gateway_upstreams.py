"""APIs beside the cluster: each in a process of its own, below a prefix, over mTLS that was agreed when it was set up.

They are less trusted than the gateway: it decides before they are asked, they believe nobody else, the gateway believes
only the certificate that it was told, and no token of a user ever reaches them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, Gateway, Site, role
from tests.support.http_server import HttpServer, Request, Response
from tests.support.ports import free_port

NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 64; }}
http {{
  map $status $served {{ 200 1; default 0; }}
  log_format identity escape=json
    '{{"uri":"$request_uri","user":"$http_x_remote_user","authorization":"$http_authorization","cookie":"$http_cookie"}}';
  access_log {folder}/access.log identity if=$served;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {folder}/backend.pem;
    ssl_certificate_key {folder}/backend.key;
    ssl_client_certificate {folder}/gateway.pem;
    ssl_verify_client on;
    location / {{ default_type application/json; return 200 '{{"uri":"$request_uri","user":"$http_x_remote_user"}}'; }}
  }}
}}
"""
INVOICES = {"nonResourceURLs": ["/billing/invoices*"], "verbs": ["get"]}


@dataclass
class Backend:
    """An API that takes nobody but the gateway; `seen` are the requests that got through."""

    port: int
    pin: str
    seen: Callable[[], list[dict[str, str]]]


def self_signed(folder: Path, name: str) -> str:
    """A certificate that nobody signed but itself, written to *folder*; gives its pin."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return certificate.fingerprint(hashes.SHA256()).hex()


@contextmanager
def nginx(folder: Path, pin: str) -> Iterator[Backend]:
    port = free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    command = [shutil.which("nginx") or "nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stderr=(folder / "nginx.errors").open("wb"))

    def seen() -> list[dict[str, str]]:
        return [json.loads(row) for row in (folder / "access.log").read_text().splitlines()]

    try:
        until_it_listens(port, process, folder / "nginx.errors")
        yield Backend(port, pin, seen)
    finally:
        process.terminate()
        process.wait(SECONDS)


def until_it_listens(port: int, process: subprocess.Popen[bytes], errors: Path) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=SECONDS).close()
        except ConnectionRefusedError:
            continue
        return
    raise AssertionError(errors.read_text())


@contextmanager
def python(folder: Path, pin: str) -> Iterator[Backend]:
    requests: list[dict[str, str]] = []

    def respond(request: Request) -> Response:
        names = {"user": "X-Remote-User", "authorization": "Authorization", "cookie": "Cookie"}
        seen = {"uri": request.target, **{key: request.headers.get(name, "") for key, name in names.items()}}
        requests.append(seen)
        return Response(body={"uri": seen["uri"], "user": seen["user"]})

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "backend.pem", folder / "backend.key")
    context.load_verify_locations(folder / "gateway.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with HttpServer(respond, tls=context).running() as server:
        yield Backend(server.port, pin, lambda: requests)


@pytest.fixture(params=[pytest.param("nginx", marks=pytest.mark.needs("nginx")), "python"])
def backend(request: pytest.FixtureRequest, site: Site) -> Iterator[Backend]:
    pin = self_signed(site.folder, "backend")
    self_signed(site.folder, "gateway")
    start: AbstractContextManager[Backend] = (nginx if request.param == "nginx" else python)(site.folder, pin)
    with start as backend:
        yield backend


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice", "bob", "billing")
    site.policy(role("", INVOICES, User="alice"), role("team", "pods", User="alice"))
    return site


def upstream(backend: Backend, **tls: Any) -> dict[str, Any]:
    files = {"ca": "backend.pem", "certificate": "gateway.pem", "key": "gateway.key", "pins": [backend.pin], **tls}
    server = f"https://localhost:{backend.port}"
    return {
        **{"name": "billing", "server": server, "prefix": "/billing", "stripPrefix": True, "attributes": "http"},
        **{"identity": "requestHeader", "tls": files},
    }


def test_what_is_allowed_reaches_the_right_backend_and_no_token_does(
    site: Site, backend: Backend, ca: trustme.CA
) -> None:
    """S67, S68, S69: the gateway passes on who asks, and never what they asked with."""
    with Cluster(ca) as cluster:
        with site.in_process(upstreams=[site.impersonating(cluster), upstream(backend)]) as gateway:
            token = gateway.login("alice").token
            answer = gateway.get(
                "/billing/invoices?year=2026", token, headers={"Cookie": "__Host-ostiary=x; theme=dark"}
            )
            # The cluster is the upstream of everything else.
            gateway.get("/api/v1/namespaces/team/pods", token)
        assert (answer.status_code, answer.json()) == (200, {"uri": "/invoices?year=2026", "user": "alice"})
        assert [record.path for record in cluster.requests] == ["/api/v1/namespaces/team/pods"]
    assert backend.seen() == [
        {"uri": "/invoices?year=2026", "user": "alice", "authorization": "", "cookie": "theme=dark"}
    ]


def test_what_is_not_allowed_never_reaches_the_backend(site: Site, backend: Backend) -> None:
    """S68 (a): the gateway decides for resources that are not its own, too."""
    with site.in_process(upstreams=[upstream(backend)]) as gateway:
        alice, bob = gateway.login("alice").token, gateway.login("bob").token
        codes = [
            gateway.get("/billing/invoices", bob).status_code,
            gateway.get("/billing/salaries", alice).status_code,
            gateway.get("/billing/../salaries", alice).status_code,
            gateway.get("/billing/invoices").status_code,
            gateway.get("/elsewhere", alice).status_code,
        ]
    assert codes[3] == 401
    assert all(code in (400, 401, 403, 404) for code in codes)
    assert backend.seen() == []


def test_the_backend_takes_nobody_but_the_gateway(site: Site, backend: Backend) -> None:
    """S68 (a): it is the certificate that was exchanged by which it knows us."""
    self_signed(site.folder, "stranger")
    for own in (None, "stranger"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(site.folder / "backend.pem")
        if own is not None:
            context.load_cert_chain(site.folder / f"{own}.pem", site.folder / f"{own}.key")
        with contextlib.suppress(httpx.TransportError):
            url = f"https://localhost:{backend.port}/invoices"
            assert (
                httpx.get(url, headers={"X-Remote-User": "alice"}, verify=context, timeout=SECONDS).status_code == 400
            )
    assert backend.seen() == []


@pytest.mark.parametrize("wrong", ["pin", "authority", "name"])
def test_a_backend_that_is_not_the_right_one_is_not_asked(site: Site, backend: Backend, wrong: str) -> None:
    """S68 (b): the right backend is contacted, or none."""
    other = self_signed(site.folder, "other")
    tls: dict[str, dict[str, Any]] = {
        "pin": {"pins": [other]},
        "authority": {"ca": "other.pem", "pins": []},
        "name": {"serverName": "other.test"},
    }
    with site.in_process(upstreams=[upstream(backend, **tls[wrong])]) as gateway:
        answer = gateway.get("/billing/invoices", gateway.login("alice").token)
    assert answer.status_code in (502, 503)
    assert answer.json()["kind"] == "Status"
    assert "certificate" not in answer.text.lower()
    assert backend.seen() == []


def test_a_backend_is_a_user_like_anyone_when_it_asks_itself(site: Site, backend: Backend, ca: trustme.CA) -> None:
    """S67: that the gateway passes requests to it gives it no right of its own."""
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        with site.in_process(upstreams=[site.impersonating(cluster), upstream(backend)]) as gateway:
            assert as_backend(gateway, None) == 401
            assert as_backend(gateway, gateway.login("billing").token) == 403
        assert cluster.requests == []


def as_backend(gateway: Gateway, token: str | None) -> int:
    """The backend calls the gateway, with its own certificate and whatever token it has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    gateway.site.ca.configure_trust(context)
    context.load_cert_chain(gateway.site.folder / "backend.pem", gateway.site.folder / "backend.key")
    headers = {"X-Remote-User": "alice", **({"Authorization": f"Bearer {token}"} if token else {})}
    url = f"{gateway.url()}/api/v1/namespaces/team/pods"
    return httpx.get(url, headers=headers, verify=context, timeout=SECONDS).status_code
