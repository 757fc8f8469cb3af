"""Credentials for a cluster: a gateway before ``ostiary registry serve --listen``, whose policy says who gets which."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from ostiary.wire.credential_provider import Request, encode_request
from tests.support.gateway import Gateway, ServedGateway, Site, role
from tests.support.registry_daemon import DaemonSite, ServedDaemon
from tests.support.tls_in_memory import VERSIONS
from tests.support.waiting import until

CANARY = "c4n4ry-c4n4ry-c4n4ry"
PATH = "/v1/credentials/"
NAME = "gateway.example.com"


def prepared(folder: Path, ca: trustme.CA) -> DaemonSite:
    site = DaemonSite(folder / "registry", "*.registry.io", "docker.io")
    site.provider.answer({"*.registry.io": ("robot", CANARY), "docker.io": ("hub", CANARY)}, duration="1h")
    for name, leaf in {
        "tls": ca.issue_cert("localhost"),
        "client": ca.issue_cert(NAME),
        "stranger": ca.issue_cert("stranger.example.com"),
    }.items():
        leaf.private_key_pem.write_to_path(str(site.folder / f"{name}.key"))
        (site.folder / f"{name}.crt").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    ca.cert_pem.write_to_path(str(site.folder / "ca.crt"))
    return site


@contextmanager
def serving(site: DaemonSite) -> Iterator[ServedDaemon]:
    files = ("--tls-cert", "tls.crt", "--tls-key", "tls.key", "--client-ca", "ca.crt", "--client-name", NAME)
    config = ("--config", str(site.config), "--bin-dir", str(site.provider.bin_dir))
    with site.serving("--socket", "none", "--listen", "127.0.0.1:0", *config, *files) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def daemon(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedDaemon]:
    """One for all tests that leave its provider as it is."""
    with serving(prepared(tmp_path_factory.mktemp("daemon"), ca)) as daemon:
        yield daemon


@pytest.fixture
def own_daemon(ca: trustme.CA, tmp_path: Path) -> Iterator[ServedDaemon]:
    """One whose provider has not run yet, and may be changed."""
    with serving(prepared(tmp_path, ca)) as daemon:
        yield daemon


def address(daemon: ServedDaemon) -> str:
    return "https://localhost:" + daemon.line("listening on").strip().rpartition(":")[2]


@pytest.fixture
def gateway(tmp_path: Path, ca: trustme.CA, own_daemon: ServedDaemon) -> Iterator[ServedGateway]:
    site = Site(tmp_path / "gateway", ca)
    site.users("node-1", "reader")
    may_ask = {"nonResourceURLs": [f"{PATH}a.registry.io/team/*"], "verbs": ["post"]}
    may_read = {"nonResourceURLs": ["/*"], "verbs": ["get"]}
    site.policy(role("", may_ask, User="node-1"), role("", may_read, User="reader"))
    files = {
        name: str(own_daemon.site.folder / file)
        for name, file in (("certificate", "client.crt"), ("key", "client.key"))
    }
    upstream = {
        "name": "registry",
        "server": address(own_daemon),
        "attributes": {"type": "http"},
        "identity": "requestHeader",
        "tls": {"ca": "ca.pem", **files},
    }
    with site.serving(upstreams=[upstream]) as gateway:
        yield gateway


def post(gateway: Gateway, user: str, path: str) -> httpx.Response:
    with gateway.http(gateway.login(user).token) as asking:
        return asking.post(path)


def test_the_gateways_policy_says_who_gets_the_credentials_of_which_images(
    gateway: ServedGateway, own_daemon: ServedDaemon, tmp_path: Path
) -> None:
    """I34."""
    for number in range(3):
        answer = post(gateway, "node-1", f"{PATH}a.registry.io/team/app-{number}")
        assert answer.status_code == 200, answer.text
        fields: dict[str, Any] = answer.json()
        login = {"username": "robot", "password": CANARY}
        assert fields["auth"] == {f"a.registry.io/team/app-{number}": login}, "for what was asked, and nothing wider"
        assert fields["cacheKeyType"] == "Image"
        assert answer.headers["Cache-Control"] == "no-store"
    assert own_daemon.site.provider.runs == 1
    own_daemon.line("by user node-1: 200")
    refused = [
        ("node-1", f"{PATH}a.registry.io/other/app"),
        ("node-1", f"{PATH}b.registry.io/team/app"),
        # A right to read everything is no right to credentials.
        ("reader", f"{PATH}a.registry.io/team/app"),
    ]
    for user, path in refused:
        answer = post(gateway, user, path)
        assert answer.status_code == 403, (user, path)
        assert CANARY not in answer.text
    with gateway.http(gateway.login("reader").token) as asking:
        assert asking.get(f"{PATH}a.registry.io/team/app").status_code == 405
    with gateway.http() as asking:
        assert asking.post(f"{PATH}a.registry.io/team/app").status_code == 401
    assert CANARY not in "".join(own_daemon.lines) + gateway.stderr
    node_asks_with_its_own_token(gateway, own_daemon.site, tmp_path)


def node_asks_with_its_own_token(gateway: Gateway, daemon_site: DaemonSite, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(gateway.login("node-1").token)
    server = {
        "url": gateway.url(),
        "tokenFile": str(token),
        "certificateAuthority": str(daemon_site.folder / "ca.crt"),
    }
    source = {"matchImages": ["*.registry.io"], "server": server}
    sources = tmp_path / "sources.yaml"
    sources.write_text(json.dumps({"apiVersion": "ostiary/v1", "kind": "ImageCredentialSources", "sources": [source]}))

    def asks(image: str) -> Any:
        request = encode_request(Request(image)).decode()
        return daemon_site.run("ostiary-credential-provider", "--config", str(sources), stdin=request)

    done = asks("a.registry.io/team/app")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["auth"] == {"a.registry.io/team/app": {"username": "robot", "password": CANARY}}
    assert answer["cacheDuration"].startswith(("1h", "59m"))
    denied = asks("a.registry.io/secret/app")
    assert (denied.returncode, denied.stdout) == (1, "")
    assert "does not let this node have the credentials" in denied.stderr
    token.write_text("ost_wrong")
    unknown = asks("a.registry.io/team/app")
    assert "does not know this node's token" in unknown.stderr
    assert "credential-server-failed" in unknown.stderr


# --- without a gateway ---


def tls(daemon: ServedDaemon, certificate: str | None) -> ssl.SSLContext:
    folder = daemon.site.folder
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if certificate:
        context.load_cert_chain(folder / f"{certificate}.crt", folder / f"{certificate}.key")
    return context


def raw_status(daemon: ServedDaemon, path: str) -> int:
    """Of a POST with this very path, which httpx would tidy up."""
    host = address(daemon).removeprefix("https://")
    connection = http.client.HTTPSConnection(host, context=tls(daemon, "client"), timeout=30)
    with closing(connection):
        connection.request("POST", path)
        return connection.getresponse().status


def client(daemon: ServedDaemon, certificate: str | None) -> httpx.Client:
    context = tls(daemon, certificate)
    return httpx.Client(base_url=address(daemon), verify=context, trust_env=False, timeout=30)


def test_nobody_but_the_named_client_may_ask(daemon: ServedDaemon) -> None:
    before = daemon.site.provider.runs
    for certificate in (None, "stranger"):
        with client(daemon, certificate) as asking, pytest.raises(httpx.TransportError):
            asking.post(f"{PATH}a.registry.io/team/app")
    daemon.line("its certificate is for stranger.example.com")
    assert daemon.site.provider.runs == before
    with client(daemon, "client") as asking:
        assert asking.post(f"{PATH}a.registry.io/team/app").status_code == 200
        assert asking.get("/healthz").status_code == 200


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_client_certificate_is_checked_in_every_handshake(version: ssl.TLSVersion, daemon: ServedDaemon) -> None:
    context = tls(daemon, "client")
    context.maximum_version = version
    session = None
    for _ in range(2):
        plain = socket.create_connection(("127.0.0.1", int(address(daemon).rpartition(":")[2])), timeout=30)
        with context.wrap_socket(plain, server_hostname="localhost", session=session) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
            session = connection.session
            assert not connection.session_reused


def test_a_path_has_one_reading(daemon: ServedDaemon) -> None:
    with client(daemon, "client") as asking:
        for path in (
            "nginx",
            "index.docker.io/library/nginx",
            "docker.io/nginx",
            "a.registry.io/team/app:v1",
            "a.registry.io/team/app@sha256:" + "0" * 64,
            "a.registry.io/team/app?x=1",
            "a.registry.io/team/%61pp",
            "a.registry.io/team/../other/app",
            "a.registry.io//team/app",
            "A.REGISTRY.IO/team/App",
            "",
        ):
            assert raw_status(daemon, f"{PATH}{path}") == 400, path
        assert asking.post(f"{PATH}docker.io/library/nginx").json()["auth"]["docker.io/library/nginx"]
        assert asking.post(f"{PATH}a.registry.io/team/app", content=b"{}").status_code == 400
        assert asking.post("/v2/credentials/x").status_code == 404
        assert "auth" not in asking.post(f"{PATH}quay.io/team/app").json()


def test_a_provider_that_fails_is_not_told_as_none(own_daemon: ServedDaemon) -> None:
    with client(own_daemon, "client") as asking:
        own_daemon.site.provider.exit(3)
        answer = asking.post(f"{PATH}a.registry.io/team/app")
        assert (answer.status_code, answer.json()["reason"]) == (503, "ServiceUnavailable")
        own_daemon.site.provider.exit(0)
        own_daemon.site.ostiary("disable", "provider")
        until(lambda: "auth" not in asking.post(f"{PATH}a.registry.io/other/app").json())
        assert asking.post(f"{PATH}a.registry.io/other/app").status_code == 200


def test_it_is_closed_by_default(daemon: ServedDaemon) -> None:
    done = daemon.site.ostiary("serve", "--listen", "127.0.0.1:0", "--tls-cert", "tls.crt", "--tls-key", "tls.key")
    assert (done.returncode, "--listen needs --client-ca" in done.stderr) == (2, True)
