"""Workloads of a real SPIRE sign in: JWT-SVIDs by the bundle as a file and by the bundle endpoint, and X.509-SVIDs.

No kube-apiserver is needed: what arrives at the upstream is read from the API server of `tests.support.cluster`.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.interop.support.process import wait_until
from tests.interop.support.spire import Spire, SpireAgent, SpireServer
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, ServedGateway, Site, role

GATEWAY = "https://gateway.example.com"
ELSEWHERE = "https://another.example.com"
DOMAIN = "example.org"
WORKLOAD = "/ns/shop/sa/deployer"
USER = f"mesh:{WORKLOAD}"
CONFIG_MAPS = "/api/v1/namespaces/shop/configmaps"
FILE, ENDPOINT = "file", "endpoint"


@dataclass(frozen=True)
class Mesh:
    """A trust domain with a server, and an agent that knows the processes of these tests as `WORKLOAD`."""

    spire: Spire
    server: SpireServer
    agent: SpireAgent
    ca: trustme.CA

    def write_bundle(self, site: Site) -> None:
        """As the how-to page says; renamed into place."""
        new = site.folder / "new-bundle.json"
        new.write_text(self.server.bundle())
        os.replace(new, site.folder / "bundle.json")

    def published_keys(self) -> set[str]:
        """The ids of the keys for JWT-SVIDs at the bundle endpoint."""
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(trust)
        bundle = httpx.get(self.server.bundle_url, verify=trust, trust_env=False, timeout=SECONDS).json()
        return {key["kid"] for key in bundle["keys"] if key["use"] == "jwt-svid"}

    @contextmanager
    def serving(self, folder: Path, cluster: Cluster, keys: str, **more: Any) -> Iterator[ServedGateway]:
        """A gateway that has the trust bundle as a file, or asks the bundle endpoint."""
        site = Site(folder, self.ca)
        self.write_bundle(site)
        spiffe_id = self.server.id(WORKLOAD)
        site.policy(role("shop", "configmaps", Group="deployers"), role("shop", "configmaps", User=spiffe_id))
        where = {"keysFile": "bundle.json"} if keys == FILE else {"keysURL": self.server.bundle_url, "ca": "ca.pem"}
        rule = {"match": {"path": "/ns/shop/sa/*"}, "username": "mesh:{path}", "groups": ["deployers"]}
        mesh = {"name": "mesh", "type": "workload", "platform": "spiffe", "trustDomain": DOMAIN, "rules": [rule]}
        sections: dict[str, Any] = {
            "externalURL": GATEWAY,
            "upstreams": [site.impersonating(cluster)],
            "identity": [{**mesh, **where}],
            "groups": [{"name": "workloads", "provider": "mesh"}],
        }
        with site.serving(**{**sections, **more}) as gateway:
            yield gateway


@pytest.fixture(scope="module")
def mesh(ca: trustme.CA) -> Iterator[Mesh]:
    with (
        Spire(ca) as spire,
        spire.server(DOMAIN) as server,
        spire.agent(server, WORKLOAD) as agent,
    ):
        yield Mesh(spire, server, agent, ca)


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    """A fixture of this file in place of the real cluster of the folder."""
    with Cluster(ca) as cluster:
        cluster.add_namespace("shop")
        yield cluster


@pytest.fixture(params=[FILE, ENDPOINT])
def keys(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def get_token(
    gateway: ServedGateway, agent: SpireAgent, *, audience: str = GATEWAY
) -> subprocess.CompletedProcess[str]:
    """``ostiary get-token`` as kubectl runs it, next to an agent."""
    words = ["--server", gateway.url(), "--ca", str(gateway.site.folder / "ca.pem"), "--from", "spiffe"]
    return subprocess.run(
        [sys.executable, "-m", "ostiary", "get-token", *words, "--audience", audience],
        env={**os.environ, "SPIFFE_ENDPOINT_SOCKET": agent.endpoint},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


def exchange(gateway: ServedGateway, token: str) -> httpx.Response:
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "subject_token": token,
    }
    with gateway.http() as http:
        return http.post("/auth/token", data=form)


def assert_refused(gateway: ServedGateway, token: str) -> None:
    answer = exchange(gateway, token)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request"), gateway.stderr


def key_of(token: str) -> str:
    header = token.partition(".")[0]
    return str(json.loads(urlsafe_b64decode(header + "=" * (-len(header) % 4)))["kid"])


def test_a_workload_gets_a_token_from_its_agent_and_works_with_it(
    mesh: Mesh, cluster: Cluster, keys: str, tmp_path: Path
) -> None:
    with mesh.serving(tmp_path / "site", cluster, keys) as gateway:
        done = get_token(gateway, mesh.agent)
        assert (done.returncode, done.stderr) == (0, ""), gateway.stderr
        token = json.loads(done.stdout)["status"]["token"]
        said = gateway.get("/auth/whoami", token).json()
        groups = [group["name"] for group in said["groups"]]
        assert (said["user"], groups) == (USER, ["deployers", "system:authenticated"])
        assert gateway.get(CONFIG_MAPS, token).status_code == 200
        record = cluster.wait_for(lambda record: record.path == CONFIG_MAPS)
        assert record.value("Impersonate-User") == USER
        assert record.values("Impersonate-Group") == ["deployers"]
        assert gateway.get("/api/v1/namespaces/shop/secrets", token).status_code == 403


def test_an_agent_that_does_not_know_the_workload_gives_no_token(mesh: Mesh, cluster: Cluster, tmp_path: Path) -> None:
    with (
        mesh.spire.agent(mesh.server) as stranger,
        mesh.serving(tmp_path / "site", cluster, FILE) as gateway,
    ):
        done = get_token(gateway, stranger)
        assert (done.returncode, done.stdout) == (1, "")
        assert "the agent gives this workload no identity: no identity issued" in done.stderr
        assert "platform-proof-unavailable" in done.stderr


def test_svids_for_another_audience_or_path_are_refused(
    mesh: Mesh, cluster: Cluster, keys: str, tmp_path: Path
) -> None:
    with mesh.serving(tmp_path / "site", cluster, keys) as gateway:
        assert_refused(gateway, mesh.agent.fetch_jwt(ELSEWHERE))
        assert_refused(gateway, mesh.agent.fetch_jwt(f"{GATEWAY},{ELSEWHERE}"))
        assert_refused(gateway, mesh.server.mint_jwt("/ns/other/sa/deployer", GATEWAY))
        assert get_token(gateway, mesh.agent, audience=ELSEWHERE).returncode == 1
        token = mesh.agent.fetch_jwt(GATEWAY)
        assert exchange(gateway, token).json()["user"] == USER
        assert_refused(gateway, f"{token[:-8]}AAAAAAAA")
        assert not any(part in gateway.stderr for part in token.split("."))


def test_svids_of_another_server_are_refused(mesh: Mesh, cluster: Cluster, tmp_path: Path) -> None:
    with (
        mesh.spire.server("other.test") as other,
        mesh.spire.server(DOMAIN, name="impostor") as impostor,
        mesh.serving(tmp_path / "files", cluster, FILE) as by_file,
        mesh.serving(tmp_path / "asks", cluster, ENDPOINT) as by_endpoint,
    ):
        foreign = [other.mint_jwt(WORKLOAD, GATEWAY), impostor.mint_jwt(WORKLOAD, GATEWAY)]
        for gateway in (by_file, by_endpoint):
            for token in foreign:
                assert_refused(gateway, token)
            assert exchange(gateway, mesh.agent.fetch_jwt(GATEWAY)).json()["user"] == USER


def test_a_new_key_is_accepted_without_a_restart_and_a_revoked_one_refused(
    mesh: Mesh, cluster: Cluster, keys: str, tmp_path: Path
) -> None:
    with mesh.serving(tmp_path / "site", cluster, keys) as gateway:
        before = mesh.server.mint_jwt(WORKLOAD, GATEWAY)
        assert exchange(gateway, before).status_code == 200, gateway.stderr

        old = mesh.server.rotate_key()
        mesh.server.taint_key(old)
        # An agent that has not heard of it keeps what the key has signed, and would never hear after the revocation.
        wait_until(lambda: key_of(mesh.agent.fetch_jwt(GATEWAY)) != old, what="the agent")
        mesh.server.revoke_key(old)
        wait_until(lambda: old not in mesh.published_keys(), what="the bundle endpoint")
        mesh.write_bundle(gateway.site)

        after = mesh.agent.fetch_jwt(GATEWAY)
        assert key_of(before) == old != key_of(after)
        # Nobody has asked this gateway for an unknown key yet: the first one to come is accepted.
        assert exchange(gateway, after).status_code == 200, gateway.stderr
        assert_refused(gateway, before)
        done = get_token(gateway, mesh.agent)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_x509_svid_signs_in_as_its_spiffe_id(mesh: Mesh, cluster: Cluster, tmp_path: Path) -> None:
    certificate, key, bundle = mesh.agent.write_x509(tmp_path / "svid")
    with mesh.spire.server("other.test", name="other-x509") as other:
        other.run("x509", "mint", "-spiffeID", other.id(WORKLOAD), "-write", str(make(tmp_path / "other")))
    # The listener trusts both authorities, so that it is the trust domain that is looked at.
    authorities = tmp_path / "authorities.pem"
    authorities.write_text(bundle.read_text() + (tmp_path / "other/bundle.pem").read_text())
    tls = {"certificate": "server.pem", "key": "server.key", "clientCA": str(authorities)}
    machines = {"name": "machines", "type": "client_certificate", "spiffeTrustDomain": DOMAIN}
    sections = {"listen": {"tls": tls}, "identity": [machines], "groups": []}
    with mesh.serving(tmp_path / "site", cluster, FILE, **sections) as gateway:
        with presenting(gateway, certificate, key) as http:
            said = http.get("/auth", headers={"Accept": "application/json"}).json()
        assert said["user"] == mesh.server.id(WORKLOAD), gateway.stderr
        assert gateway.get(CONFIG_MAPS, said["token"]).status_code == 200
        record = cluster.wait_for(lambda record: record.path == CONFIG_MAPS)
        assert record.value("Impersonate-User") == mesh.server.id(WORKLOAD)
        with presenting(gateway, tmp_path / "other/svid.pem", tmp_path / "other/key.pem") as http:
            assert http.get("/auth").status_code == 403
        assert gateway.get("/auth").status_code == 403


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def presenting(gateway: ServedGateway, certificate: Path, key: Path) -> httpx.Client:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    gateway.site.ca.configure_trust(context)
    context.load_cert_chain(certificate, key)
    return httpx.Client(base_url=gateway.url(), verify=context, timeout=SECONDS, trust_env=False)
