"""Service accounts and API tokens as operators, people and programs use them: processes, TLS, kubectl, replicas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trustme

from ostiary_gateway.testing import FakeClock
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, Gateway, ServedGateway, Site, role
from tests.support.postgresql import PostgresServer
from tests.support.postgresql_store import settings_for
from tests.support.waiting import until

OPERATOR = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
OWN_TOKENS = {"apiGroups": ["ostiary.dev"], "resources": ["apitokens"], "verbs": ["create", "list", "delete"]}
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
ACCOUNT = "ostiary:serviceaccount:team:deployer"
PODS = "/api/v1/namespaces/team/pods"
API = "/apis/ostiary.dev/v1"


class Running:
    """A gateway of two workers, and the command line next to it."""

    def __init__(self, gateway: ServedGateway) -> None:
        self.gateway, self.folder = gateway, gateway.site.folder

    def local(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.program(*arguments, "--config", "gateway.yaml")

    def remote(self, *arguments: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        file = self.folder / f"token-of-{user}-{uuid4().hex}"
        file.write_text(self.gateway.login(user).token)
        options = ("--server", self.gateway.url(), "--token-file", str(file), "--ca", "ca.pem")
        return self.program(*arguments, *options)

    def program(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ostiary_gateway", *arguments],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def account(self) -> str:
        """One that no other test knows."""
        name = f"team/deployer-{uuid4().hex[:8]}"
        done = self.remote("accounts", "create", name)
        assert done.returncode == 0, done.stderr
        return name

    def token(self, name: str, *more: str) -> str:
        done = self.remote("accounts", "token", name, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def is_refused_by_all(gateway: Gateway, token: str) -> bool:
    """Whether every worker refuses the token: each connection may be another worker's."""
    deadline = time.monotonic() + SECONDS
    in_a_row = 0
    while in_a_row < 10 and time.monotonic() < deadline:
        in_a_row = in_a_row + 1 if gateway.get(PODS, token).status_code == 401 else 0
    return in_a_row == 10


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web", log=b"one\n")
        yield cluster


def prepared(folder: Path, ca: trustme.CA) -> Site:
    site = Site(folder, ca)
    site.users("root", "alice", "bob")
    site.policy(
        role("", OPERATOR, User="root"),
        role("team", READ, Group="ostiary:serviceaccounts:team"),
        role("team", READ, User="alice"),
        role("", OWN_TOKENS, User="alice"),
    )
    return site


@pytest.fixture(scope="module")
def running(ca: trustme.CA, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    site = prepared(tmp_path_factory.mktemp("accounts"), ca)
    declared = [{"namespace": "team", "name": "declared"}]
    with site.serving(
        listen={"workers": 2},
        upstreams=[site.impersonating(cluster)],
        serviceAccounts={"declared": declared},
        apiTokens={"enabled": True},
    ) as gateway:
        yield Running(gateway)


class TestServiceAccounts:
    @pytest.mark.needs("kubectl")
    def test_a_program_uses_kubectl_as_its_account_until_the_account_is_deleted(self, running: Running) -> None:
        """S72."""
        name = running.account()
        kubectl = running.gateway.kubectl(running.token(name))
        assert "web " in kubectl.output("get", "pods")
        assert f"ostiary:serviceaccount:{name.replace('/', ':')}" in kubectl.output("auth", "whoami")
        assert kubectl("delete", "pod", "web").returncode == 1
        done = running.remote("accounts", "delete", name)
        assert done.stdout == f"service account {name} deleted: 1 token ended\n"
        assert is_refused_by_all(running.gateway, _token_of(kubectl))

    @pytest.mark.slow
    def test_an_account_is_managed_on_the_gateways_machine_too(self, running: Running) -> None:
        name = f"team/local-{uuid4().hex[:8]}"
        assert running.local("accounts", "create", name, "--description", "for a test").returncode == 0
        again = running.local("accounts", "create", name)
        assert (again.returncode, again.stderr.splitlines()[0]) == (
            1,
            f'ostiary: the service account "{name}" already exists',
        )
        token = running.local("accounts", "token", name, "--for", "5m").stdout.strip()
        assert running.gateway.get(PODS, token).status_code == 200
        assert running.local("accounts", "disable", name).returncode == 0
        assert is_refused_by_all(running.gateway, token)
        listed = json.loads(running.remote("accounts", "list", "-n", "team", "-o", "json").stdout)
        states = {item["metadata"]["name"]: item["status"]["state"] for item in listed["items"]}
        assert states[name.partition("/")[2]] == "disabled"
        assert states["declared"] == "active"
        assert running.local("accounts", "enable", name).returncode == 0
        assert running.local("accounts", "delete", name).returncode == 0
        assert "there is no service account" in running.local("accounts", "delete", name).stderr

    def test_a_token_in_a_file_is_its_readers_alone(self, running: Running) -> None:
        file = running.folder / f"token-{uuid4().hex}"
        done = running.remote("accounts", "token", running.account(), "--file", str(file))
        assert (done.returncode, done.stdout) == (0, "")
        assert file.stat().st_mode & 0o777 == 0o600
        assert running.gateway.get(PODS, file.read_text()).status_code == 200
        assert file.read_text() not in done.stderr

    def test_what_is_refused_says_why(self, running: Running) -> None:
        name = running.account()
        for arguments, text in (
            (("accounts", "token", name, "--for", "90d"), "24h at most"),
            (("accounts", "token", name, "--for", "soon"), "--for needs a time"),
            (("accounts", "create", "Team/X"), "the namespace must be"),
            (("accounts", "create", "deployer"), "NAMESPACE/NAME"),
            (("accounts", "delete", "team/declared"), "declared in the configuration"),
            (("accounts", "token", "team/nobody"), "there is no service account"),
            (("accounts", "token", name, "--can", "everything"), "invalid scope"),
        ):
            done = running.remote(*arguments)
            assert done.returncode != 0
            assert text in done.stderr, done.stderr
        assert running.remote("accounts", "create", "team/x", user="bob").returncode == 1

    def test_a_narrowed_token_is_less_than_its_account(self, running: Running) -> None:
        token = running.token(running.account(), "--can", "get pods -n team")
        assert running.gateway.get(f"{PODS}/web", token).status_code == 200
        assert running.gateway.get(PODS, token).status_code == 403


def _token_of(kubectl: Any) -> str:
    config = json.loads(kubectl.output("config", "view", "--raw", "-o", "json"))
    return str(config["users"][0]["user"]["token"])


class TestApiTokens:
    def test_a_token_is_made_once_shown_listed_used_and_revoked(self, running: Running) -> None:
        made = running.remote("tokens", "create", "backup", "--for", "30d", user="alice")
        assert made.returncode == 0, made.stderr
        token = made.stdout.strip()
        assert token.startswith("osp_")
        assert running.gateway.get(PODS, token).status_code == 200
        listed = running.remote("tokens", "list", user="alice")
        assert token not in listed.stdout
        row = next(line for line in listed.stdout.splitlines() if line.startswith("backup"))
        assert "alice" in row
        by_operator = running.local("tokens", "list", "--user", "alice")
        assert "backup" in by_operator.stdout
        assert running.remote("tokens", "revoke", "backup", user="alice").returncode == 0
        assert is_refused_by_all(running.gateway, token)
        assert running.remote("tokens", "list", user="alice").stdout == "there are no API tokens\n"

    def test_the_use_of_a_token_is_told(self, running: Running) -> None:
        token = running.remote("tokens", "create", "used", user="alice").stdout.strip()
        assert running.gateway.get(PODS, token).status_code == 200

        def last_used() -> str | None:
            (item,) = json.loads(running.remote("tokens", "list", "-o", "json", user="alice").stdout)["items"]
            used: str | None = item["status"]["lastUsed"]
            return used

        assert until(last_used)
        running.remote("tokens", "revoke", "used", user="alice")

    def test_the_policy_says_who_has_them(self, running: Running) -> None:
        done = running.remote("tokens", "create", "mine", user="bob")
        assert done.returncode == 1
        assert "403" in done.stderr

    def test_an_owner_who_is_gone_loses_the_token(self, ca: trustme.CA, cluster: Cluster, tmp_path: Path) -> None:
        site, clock = prepared(tmp_path, ca), FakeClock()
        with site.in_process(
            clock=clock, upstreams=[site.impersonating(cluster)], apiTokens={"enabled": True}
        ) as gateway:
            with gateway.http(gateway.login("alice").token) as http:
                made = http.post(f"{API}/apitokens", json={"spec": {"name": "backup"}}).json()
            token = made["status"]["token"]
            assert gateway.get(PODS, token).status_code == 200
            # Days later she is still somebody.
            clock.advance(3 * 24 * 3600)
            assert gateway.get(PODS, token).status_code == 200
            site.users("root", "bob")
            assert gateway.get(PODS, token).status_code == 200, "she was asked about a moment ago"
            clock.advance(15 * 60)
            assert gateway.get(PODS, token).status_code == 401
            site.users("root", "alice", "bob")
            assert gateway.get(PODS, token).status_code == 401, "it does not come back"


class TestReplicas:
    @pytest.mark.slow
    def test_what_one_replica_makes_another_lists_and_revokes(
        self, ca: trustme.CA, cluster: Cluster, tmp_path: Path, postgresql_15: PostgresServer
    ) -> None:
        settings = settings_for(postgresql_15, folder=tmp_path)
        store = {
            "type": "postgresql",
            "hosts": list(settings.hosts),
            "database": settings.database,
            "user": settings.user,
            "passwordFile": str(settings.password_file),
            "schema": settings.schema,
        }
        sites = [prepared(tmp_path / name, ca) for name in ("a", "b")]
        (sites[1].folder / "users").write_text((sites[0].folder / "users").read_text())
        sections: dict[str, Any] = {
            "store": store,
            "apiTokens": {"enabled": True},
            "externalURL": "https://gateway.example",
        }
        with (
            sites[0].serving(upstreams=[sites[0].impersonating(cluster)], **sections) as first,
            sites[1].serving(upstreams=[sites[1].impersonating(cluster)], **sections) as second,
        ):
            a, b = Running(first), Running(second)
            name = a.account()
            account_token = b.token(name)
            api_token = a.remote("tokens", "create", "backup", user="alice").stdout.strip()
            for gateway in (first, second):
                assert gateway.get(PODS, account_token).status_code == 200
                assert gateway.get(PODS, api_token).status_code == 200
            assert "backup" in b.remote("tokens", "list", user="alice").stdout
            assert b.remote("tokens", "revoke", "backup", user="alice").returncode == 0
            assert b.remote("accounts", "delete", name).returncode == 0
            for gateway in (first, second):
                assert is_refused_by_all(gateway, api_token)
                assert is_refused_by_all(gateway, account_token)


def test_no_token_is_in_a_log_an_audit_record_or_a_list(running: Running) -> None:
    tokens = [
        running.token(running.account()),
        running.remote("tokens", "create", f"canary-{uuid4().hex[:8]}", user="alice").stdout.strip(),
    ]
    for token in tokens:
        assert running.gateway.get(PODS, token).status_code == 200
        # A token in the wrong places: a path, a query, a name.
        for path in (
            f"{API}/apitokens/{token}",
            f"{PODS}?token={token}",
            f"{API}/namespaces/team/serviceaccounts/{token}",
        ):
            running.gateway.get(path, tokens[0])
        done = running.remote("accounts", "create", token)
        assert token not in done.stdout + done.stderr
    everything = running.gateway.stderr + running.gateway.site.audit_log.read_text()
    for token in tokens:
        assert token not in everything
        assert token[4:-8] not in everything
