"""A real kube-apiserver that trusts the gateway's JWTs by itself: accepted, refused when revoked, keys rotated.

Two of them: one asks the deny-only webhook, the other one has only the deny-list in its AuthenticationConfiguration,
which ``ostiary-gateway issuer kubernetes --follow`` keeps fresh.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ostiary.cli.login.sessions import FILE, GatewayAccount, Sessions, SignInGrant
from ostiary.model import Secret
from ostiary_gateway.issuer.deny_list import MOST_LISTED
from ostiary_gateway.wire.apiserver_config import authentication_configuration
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, RevokedSubject
from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import GROUPS, ClusterSite
from tests.interop.support.kubectl import RealKubectl
from tests.interop.support.people import GROUP_OF
from tests.interop.support.process import wait_until
from tests.support.gateway import ServedGateway
from tests.support.plugins import write_kubeconfig
from tests.support.ports import free_port

CALLER = "token-of-the-api-server"
AUDIENCE, OTHER_AUDIENCE = "https://this-cluster.example", "https://other-cluster.example"
EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    "requested_token_type": "urn:ietf:params:oauth:token-type:jwt",
}


@dataclass
class Trusting:
    """A gateway that signs, and the API servers that trust it."""

    cluster: RealCluster
    site: ClusterSite
    gateway: ServedGateway
    by_webhook: str = ""
    by_list: str = ""
    _clients: dict[str, httpx.Client] = field(default_factory=dict)

    def jwt(self, user: str = "bob", *, audience: str = AUDIENCE, login: Any = None) -> str:
        login = login or self.gateway.login(user)
        with self.gateway.http() as http:
            answer = http.post("/auth/token", data={**EXCHANGE, "subject_token": login.token, "audience": audience})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    def asked(self, server: str, token: str) -> int:
        """The status of a request that bob's role allows."""
        if server not in self._clients:
            self._clients[server] = httpx.Client(
                base_url=server, verify=self.cluster.trust(), timeout=30, trust_env=False
            )
        path = "/api/v1/namespaces/team/configmaps?limit=1"
        return self._clients[server].get(path, headers={"Authorization": f"Bearer {token}"}).status_code


@pytest.fixture(scope="module")
def trusting(cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusting]:
    folder = tmp_path_factory.mktemp("issuing-gateway")
    site = ClusterSite(folder, cluster)
    port = free_port()
    (folder / "caller-token").write_text(CALLER)
    (folder / "issuer-secret").write_text(secrets.token_hex(32))
    sections: dict[str, Any] = {
        "listen": {"address": f"127.0.0.1:{port}", "workers": 2},
        "externalURL": f"https://localhost:{port}",
        "externalCA": "ca.pem",
        "groups": GROUPS,
        "issuer": {"audiences": [AUDIENCE, OTHER_AUDIENCE], "keys": {"secretFile": "issuer-secret"}},
        "webhooks": {"revocations": True, "callers": {"tokenFile": "caller-token"}},
    }
    with site.serving(**sections) as gateway:
        trusting = Trusting(cluster, site, gateway)
        followed = folder / "followed.yaml"
        with following(site, gateway, followed):
            webhook = write_kubeconfig(
                folder / "webhook.kubeconfig",
                server=f"{gateway.url()}/webhooks/deny-revoked",
                user={"token": CALLER},
                cluster={"certificate-authority": str(folder / "ca.pem")},
            )
            authentication = printed(site, "authentication.yaml", "--audience", AUDIENCE)
            authorization = printed(site, "authorization.yaml", "--audience", AUDIENCE, "--webhook", str(webhook))
            flags = (f"--authentication-config={authentication}", f"--authorization-config={authorization}")
            with (
                cluster.api_server(*flags, modes="") as trusting.by_webhook,
                cluster.api_server(f"--authentication-config={followed}") as trusting.by_list,
            ):
                yield trusting


def printed(site: ClusterSite, name: str, *options: str) -> Path:
    """What ``ostiary-gateway issuer kubernetes`` prints, in a file."""
    done = site.ostiary("issuer", "kubernetes", *options)
    assert done.returncode == 0, done.stderr
    (site.folder / name).write_text(done.stdout)
    return site.folder / name


@contextmanager
def following(site: ClusterSite, gateway: ServedGateway, path: Path) -> Iterator[None]:
    """``ostiary-gateway issuer kubernetes --follow``, as it runs beside an API server."""
    options = ["--server", gateway.url(), "--token-file", "caller-token", "--ca", "ca.pem", "--audience", AUDIENCE]
    command = [sys.executable, "-m", "ostiary_gateway", "issuer", "kubernetes", *options, "--follow", str(path)]
    process = subprocess.Popen(command, cwd=site.folder, stdin=subprocess.DEVNULL)
    try:
        wait_until(path.exists, what="the file", seconds=30)
        yield
    finally:
        process.terminate()
        process.wait(30)


def issued_at(token: str) -> int:
    body = token.split(".")[1]
    return int(json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))["iat"])


class TestAccepted:
    @pytest.mark.parametrize("way", ["by_webhook", "by_list"])
    def test_a_jwt_names_its_user_with_groups_and_credential(self, trusting: Trusting, way: str) -> None:
        token = trusting.jwt("bob")
        kubeconfig = trusting.cluster.kubeconfig({"token": token}, server=getattr(trusting, way))
        kubectl = RealKubectl(trusting.cluster.kubernetes.program("kubectl"), kubeconfig)
        shown = json.loads(kubectl.output("auth", "whoami", "-o", "json"))["status"]["userInfo"]
        assert shown["username"] == "bob"
        assert set(shown["groups"]) == {GROUP_OF["bob"], "system:authenticated"}
        assert shown["extra"]["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")
        assert shown["extra"]["ostiary.dev/issuer"] == [trusting.gateway.url()]
        assert kubectl("get", "configmaps", "-n", "team").returncode == 0

    def test_a_jwt_for_another_cluster_is_refused(self, trusting: Trusting) -> None:
        token = trusting.jwt(audience=OTHER_AUDIENCE)
        assert trusting.asked(trusting.by_webhook, token) == 401
        assert trusting.asked(trusting.by_list, token) == 401


def signed_in_home(trusting: Trusting, home: Path, monkeypatch: pytest.MonkeyPatch, user: str) -> dict[str, str]:
    """What ``ostiary login`` leaves behind, in a home of its own; gives the environment."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    login = trusting.gateway.login(user)
    soon, later = (datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (14, 600))
    grant = SignInGrant(Secret(login.token), soon, Secret(login.renewal_token), login.session, later, user)
    authority = (trusting.site.folder / "ca.pem").read_text()
    Sessions(GatewayAccount(trusting.gateway.url())).save(grant, store=FILE, authorities_pem=authority)
    scripts = str(Path(sys.executable).parent)
    return {"XDG_STATE_HOME": str(home), "PATH": f"{scripts}:{os.environ['PATH']}"}


class TestKubectl:
    def test_the_exec_plugin_signs_in_at_the_gateway_and_kubectl_works_at_the_cluster(
        self, trusting: Trusting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment = signed_in_home(trusting, tmp_path, monkeypatch, "bob")
        authority = str(trusting.cluster.folder / "ca.pem")
        words = ["--server", trusting.gateway.url(), "--api-server", trusting.by_webhook, "--ca", authority]
        done = trusting.site.ostiary("kubeconfig", *words, "--jwt-for", AUDIENCE, "--name", "prod")
        assert done.returncode == 0, done.stderr
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(done.stdout)
        kubectl = RealKubectl(trusting.cluster.kubernetes.program("kubectl"), kubeconfig, **environment)
        shown = json.loads(kubectl.output("auth", "whoami", "-o", "json"))["status"]["userInfo"]
        assert shown["username"] == "bob"
        assert kubectl("get", "configmaps", "-n", "team").returncode == 0


class TestRevoked:
    def test_the_webhook_refuses_soon(self, trusting: Trusting) -> None:
        login, other = trusting.gateway.login("bob"), trusting.jwt("alice")
        token = trusting.jwt(login=login)
        assert trusting.asked(trusting.by_webhook, token) == 200
        with trusting.gateway.http(login.token) as http:
            assert http.post("/auth/logout").status_code == 204
        ended_at = time.monotonic()
        # Milliseconds, where the machine has time for it.
        wait_until(lambda: trusting.asked(trusting.by_webhook, token) != 200, what="the refusal", seconds=30)
        print(f"refused by the webhook after {time.monotonic() - ended_at:.3f} s")
        assert trusting.asked(trusting.by_webhook, token) in (401, 403)
        assert trusting.asked(trusting.by_webhook, other) == 200

    def test_the_deny_list_alone_refuses_within_a_minute_and_nobody_else(self, trusting: Trusting) -> None:
        login, other = trusting.gateway.login("bob"), trusting.jwt("bob")
        token = trusting.jwt(login=login)
        assert trusting.asked(trusting.by_list, token) == trusting.asked(trusting.by_list, other) == 200
        with trusting.gateway.http(login.token) as http:
            assert http.post("/auth/logout").status_code == 204
        ended_at = time.monotonic()
        others = []
        while trusting.asked(trusting.by_list, token) == 200:
            others.append(trusting.asked(trusting.by_list, other))
            assert time.monotonic() - ended_at < 60
            threading.Event().wait(0.05)
        print(f"refused by the list after {time.monotonic() - ended_at:.3f} s; {len(others)} requests of another user")
        assert trusting.asked(trusting.by_list, token) == 401
        assert set(others) == {200}


class TestLongestList:
    def test_a_rule_about_one_user_in_the_longest_list_refuses_nobody_else(
        self, trusting: Trusting, tmp_path: Path
    ) -> None:
        """As the gateway makes it where every user has revoked more than their share; cel-go must take all of it."""
        before, others = trusting.jwt("bob"), trusting.jwt("alice")
        until = max(issued_at(before), issued_at(others))
        wait_until(lambda: int(time.time()) > until, what="the next second")
        after = trusting.jwt("bob")
        subjects = [RevokedSubject(username="bob", issued_until=until)]
        subjects += [RevokedSubject(username=f"user-{number}@example.com", issued_until=until) for number in range(999)]
        ids = [secrets.token_hex(32) for _ in range(MOST_LISTED - len(subjects))]
        revoked = RevokedCredentials(
            trusting.gateway.url(), (AUDIENCE,), credential_ids=tuple(ids), subjects=tuple(subjects)
        )
        assert len(revoked) == MOST_LISTED
        file = tmp_path / "authentication.yaml"
        authority = (trusting.site.folder / "ca.pem").read_text()
        file.write_text(json.dumps(authentication_configuration(revoked, authorities_pem=authority)))
        with trusting.cluster.api_server(f"--authentication-config={file}") as server:
            # The keys are fetched after the start.
            wait_until(lambda: trusting.asked(server, others) == 200, what="the issuer's keys", seconds=60)
            began = time.monotonic()
            assert trusting.asked(server, after) == 200
            print(f"a JWT that was not seen before took {time.monotonic() - began:.3f} s with {len(revoked)} entries")
            assert trusting.asked(server, before) == 401


class TestRotation:
    def test_keys_rotate_under_requests_without_a_failure(self, trusting: Trusting) -> None:
        """JWTs of the old keys and of the new ones, signed by either worker, at both API servers."""
        held = [trusting.jwt("bob")]
        for _ in range(3):
            login = trusting.gateway.login("bob")
            done = trusting.site.ostiary("issuer", "rotate", "-o", "json")
            assert done.returncode == 0, done.stderr
            keys = json.loads(done.stdout)["keys"]
            assert [key["state"] for key in keys] == ["published"] * (len(keys) - 2) + ["signs", "next"]
            deadline = time.monotonic() + 60
            while key_id(held[-1]) != keys[-1]["kid"]:
                assert time.monotonic() < deadline
                held.append(trusting.jwt(login=login))
                for server in (trusting.by_webhook, trusting.by_list):
                    assert {trusting.asked(server, token) for token in held[-8:]} == {200}
                # One session gets one a second.
                threading.Event().wait(0.5)
        for server in (trusting.by_webhook, trusting.by_list):
            assert {trusting.asked(server, token) for token in held} == {200}
        kids = {key_id(token) for token in held}
        print(f"{len(held)} JWTs of {len(kids)} keys, 0 refused")
        assert len(kids) == 4

    def test_a_jwt_of_a_key_that_was_withdrawn_is_refused_when_the_keys_were_fetched_again(
        self, trusting: Trusting
    ) -> None:
        old = trusting.jwt()
        assert trusting.asked(trusting.by_list, old) == 200
        assert trusting.site.ostiary("issuer", "rotate", "--withdraw").returncode == 0
        # A worker goes on with the key in its memory until it looks again, half a minute at most.
        new = old
        deadline = time.monotonic() + 60
        while key_id(new) == key_id(old):
            assert time.monotonic() < deadline
            new = trusting.jwt(login=trusting.gateway.login("bob"))
            threading.Event().wait(0.5)
        assert trusting.asked(trusting.by_list, new) == 200
        wait_until(lambda: trusting.asked(trusting.by_list, old) == 401, what="the old key is not known", seconds=30)


def key_id(token: str) -> str:
    head = token.split(".")[0]
    return str(json.loads(urlsafe_b64decode(head + "=" * (-len(head) % 4)))["kid"])
