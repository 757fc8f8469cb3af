"""The operator's commands, as processes, beside and against a gateway that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trustme

from ostiary.cli.login.sessions import FILE, GatewayAccount, Sessions, SignInGrant
from ostiary.model import Secret
from tests.support.cluster import Cluster
from tests.support.gateway import Login, ServedGateway, Site, role
from tests.support.waiting import until

OPERATOR = [
    {"apiGroups": ["ostiary.dev"], "resources": ["sessions"], "verbs": ["list"]},
    {"apiGroups": ["ostiary.dev"], "resources": ["revocations"], "verbs": ["create"]},
    {"apiGroups": ["ostiary.dev"], "resources": ["decisions"], "verbs": ["get"]},
    {"apiGroups": ["ostiary.dev"], "resources": ["apitokens"], "verbs": ["create"]},
]
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}


class Running:
    """A gateway, and the command line next to it."""

    def __init__(self, gateway: ServedGateway) -> None:
        self.gateway = gateway
        self.folder = gateway.site.folder

    def local(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self.program(*arguments, "--config", "gateway.yaml", stdin=stdin)

    def remote(self, *arguments: str, user: str = "root", stdin: str = "") -> subprocess.CompletedProcess[str]:
        file = self.folder / f"token-of-{user}-{uuid4().hex}"
        file.write_text(self.gateway.login(user).token + "\n")
        options = ("--server", self.gateway.url(), "--token-file", str(file), "--ca", "ca.pem")
        return self.program(*arguments, *options, stdin=stdin)

    def program(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ostiary_gateway", *arguments],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
        )

    def status(self, token: str, path: str = "/api/v1/namespaces/team/pods") -> int:
        return self.gateway.get(path, token).status_code

    def refused(self, token: str) -> str:
        """The id of a request that is refused."""
        with self.gateway.http(token) as http:
            answer = http.delete("/api/v1/namespaces/team/pods/web")
        assert answer.status_code == 403
        return answer.headers["Audit-Id"]


@pytest.fixture(scope="module")
def running(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    site = Site(tmp_path_factory.mktemp("cli"), ca)
    site.users("alice", "bob", "carol", "root")
    site.groups({"dev": ["alice", "bob"]})
    site.policy(role("team", READ, Group="dev"), role("team", READ, User="carol"), role("", *OPERATOR, User="root"))
    groups = [{"name": "teams", "type": "file", "path": "groups.yaml"}]
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        with site.serving(upstreams=[site.impersonating(cluster)], groups=groups) as gateway:
            yield Running(gateway)


@pytest.mark.parametrize("how", ["local", "remote"])
class TestSessions:
    def ask(self, running: Running, how: str, *arguments: str, stdin: str = "") -> str:
        done = getattr(running, how)("sessions", *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def test_they_are_listed(self, running: Running, how: str) -> None:
        session = running.gateway.login("alice").session
        told = json.loads(self.ask(running, how, "list", "--user", "alice", "--output", "json"))
        (mine,) = [one for one in told["items"] if one["id"] == session]
        assert (mine["user"], mine["groups"], mine["provider"]) == ("alice", ["dev"], "staff")

    def test_a_revoked_user_is_out_when_the_command_returns_or_a_moment_later(self, running: Running, how: str) -> None:
        alice, bob = running.gateway.login("alice"), running.gateway.login("bob")
        assert running.status(alice.token) == running.status(bob.token) == 200
        assert self.ask(running, how, "revoke", "user", "alice").endswith("ended\n")
        wait_for_401(running, alice.token)
        assert running.status(bob.token) == 200
        assert running.status(running.gateway.login("alice").token) == 200

    def test_a_group_and_a_session_are_ended(self, running: Running, how: str) -> None:
        bob, carol = running.gateway.login("bob"), running.gateway.login("carol")
        self.ask(running, how, "revoke", "group", "dev")
        wait_for_401(running, bob.token)
        assert running.status(carol.token) == 200
        assert self.ask(running, how, "revoke", "session", carol.session) == "1 session ended\n"
        wait_for_401(running, carol.token)

    def test_a_leaked_token_is_ended_and_seen_by_nobody(self, running: Running, how: str) -> None:
        leaked, other = running.gateway.login("carol"), running.gateway.login("carol")
        assert self.ask(running, how, "revoke", "token", "-", stdin=leaked.token) == "1 token ended\n"
        wait_for_401(running, leaked.token)
        assert running.status(other.token) == 200
        assert leaked.token not in running.gateway.stderr + running.gateway.site.audit_log.read_text()


def wait_for_401(running: Running, token: str) -> None:
    """The command has returned, so the store knows; a worker hears of it within milliseconds."""
    for _ in range(200):
        if running.status(token) == 401:
            return
    pytest.fail("the token still opens the door")


class TestExplain:
    @pytest.mark.parametrize("how", ["local", "remote"])
    def test_a_refused_request_is_explained_by_the_id_its_sender_has(self, running: Running, how: str) -> None:
        """Idea 2."""
        audit_id = running.refused(running.gateway.login("carol").token)
        wait_for_event(running, audit_id)
        done = getattr(running, how)("explain", audit_id)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{audit_id}, ")
        assert 'asked    User "carol": delete pods "web" in namespace "team"' in done.stdout
        assert 'failed   verb: the rule allows "get", "list" and not "delete"' in done.stdout
        assert "The smallest rule that would allow it:" in done.stdout

    def test_both_ways_tell_the_same(self, running: Running) -> None:
        audit_id = running.refused(running.gateway.login("carol").token)
        wait_for_event(running, audit_id)
        told = [json.loads(ask("explain", audit_id, "-o", "json").stdout) for ask in (running.local, running.remote)]
        local, remote = [{**one, "at": "", "then": {**one["then"], "verdict": ""}} for one in told]
        # The one quotes the file as it lies here, and so does the other.
        assert local == remote

    def test_an_unknown_id_is_told(self, running: Running) -> None:
        for ask in (running.local, running.remote):
            done = ask("explain", "no-such-id")
            assert (done.returncode, "code   decision-not-found" in done.stderr) == (1, True)


def wait_for_event(running: Running, audit_id: str) -> None:
    """Events are written a few times a second."""
    log = running.gateway.site.audit_log
    until(lambda: log.exists() and audit_id in log.read_text(), "the event is written")


class TestTheSessionOfLogin:
    """Without a token file whoever signed in with ``ostiary login`` is the one who asks."""

    def signed_in(self, running: Running, user: str, account: str = "default") -> Login:
        """As `ostiary login` leaves it; the site's authority is remembered with the session."""
        issued = running.gateway.login(user)
        until = datetime.now(UTC) + timedelta(minutes=10)
        grant = SignInGrant(Secret(issued.token), until, Secret("osr_unused"), issued.session, until, user)
        authorities_pem = (running.folder / "ca.pem").read_text()
        Sessions(GatewayAccount(running.gateway.url(), account)).save(
            grant, store=FILE, authorities_pem=authorities_pem
        )
        return issued

    def test_it_asks_for_sessions_and_decisions(self, running: Running) -> None:
        mine = self.signed_in(running, "root")
        audit_id = running.refused(running.gateway.login("carol").token)
        server = ("--server", running.gateway.url())
        done = running.program("sessions", "list", "--user", "root", *server)
        assert (done.returncode, mine.session in done.stdout, done.stderr) == (0, True, "")
        done = running.program("explain", audit_id, *server)
        assert (done.returncode, done.stdout.startswith(audit_id)) == (0, True), done.stderr
        assert mine.token not in done.stdout + done.stderr

    def test_one_of_several_accounts_can_be_named(self, running: Running) -> None:
        self.signed_in(running, "carol")
        self.signed_in(running, "root", "admin")
        server = ("--server", running.gateway.url())
        assert "answered 403" in running.program("sessions", "list", *server).stderr
        assert running.program("sessions", "list", *server, "--account", "admin").returncode == 0

    def test_one_that_was_revoked_is_told_with_how_to_sign_in(self, running: Running) -> None:
        mine = self.signed_in(running, "root", "admin")
        server = ("--server", running.gateway.url())
        admin = (*server, "--account", "admin")
        assert running.program("sessions", "revoke", "session", mine.session, *admin).stdout == "1 session ended\n"
        wait_for_401(running, mine.token)
        said = running.program("sessions", "list", *admin).stderr
        assert "the gateway answered 401" in said
        assert f"hint   sign in again: ostiary login --server {running.gateway.url()} --account admin\n" in said

    def test_without_one_nobody_is_asked_and_both_ways_are_told(self, running: Running) -> None:
        done = running.program("sessions", "list", "--server", running.gateway.url(), "--account", "nobody")
        assert (done.returncode, done.stdout) == (1, "")
        assert "code   sign-in-needed" in done.stderr
        assert f"ostiary login --server {running.gateway.url()} --account nobody" in done.stderr
        assert "--token-file" in done.stderr


class TestWhoMayAsk:
    @pytest.mark.parametrize(
        "line", ["sessions list", "sessions revoke user root", "explain an-id"], ids=lambda line: line.replace(" ", "-")
    )
    def test_operators_are_made_by_policy(self, running: Running, line: str) -> None:
        done = running.remote(*line.split(), user="carol")
        assert (done.returncode, done.stdout) == (1, "")
        assert "permission denied: the gateway answered 403" in done.stderr
        assert "hint   the policy must allow you to do this" in done.stderr
        assert "code   gateway-refused" in done.stderr

    def test_a_feature_that_is_switched_off_is_not_blamed_on_the_policy(self, running: Running) -> None:
        done = running.remote("tokens", "create", "backup", user="root")
        assert done.returncode == 1
        assert "API tokens are switched off" in done.stderr
        assert "hint" not in done.stderr

    def test_a_token_that_is_none_is_told(self, running: Running) -> None:
        (running.folder / "bad").write_text("ost_bad")
        options = ("--server", running.gateway.url(), "--token-file", "bad")
        done = running.program("sessions", "list", *options, "--ca", "ca.pem", "-o", "json")
        error: dict[str, Any] = json.loads(done.stderr)["error"]
        assert (done.returncode, error["code"]) == (1, "gateway-refused")
        assert "sign in again" in error["hint"]
        assert "ost_bad" not in done.stderr

    def test_a_server_that_is_not_trusted_never_sees_the_token(self, running: Running) -> None:
        (running.folder / "mine").write_text(running.gateway.login("root").token)
        other = trustme.CA()
        other.cert_pem.write_to_path(str(running.folder / "other.pem"))
        done = running.program(
            *("sessions", "list", "--server", running.gateway.url(), "--token-file", "mine", "--ca", "other.pem")
        )
        assert done.returncode == 1
        assert "the gateway's certificate cannot be verified" in done.stderr
        assert "code   gateway-unreachable" in done.stderr

    def test_nobody_there_is_told(self, running: Running) -> None:
        (running.folder / "mine").write_text("ost_x")
        done = running.program("sessions", "list", "--server", "http://127.0.0.1:1", "--token-file", "mine")
        assert (done.returncode, "code   gateway-unreachable" in done.stderr) == (1, True)
        done = running.program("sessions", "list", "--server", running.gateway.health, "--token-file", "mine")
        assert "without the response of a gateway" in done.stderr


def test_what_people_did_is_replayed_against_the_policy_in_force(running: Running) -> None:
    """Idea 3: the gateway's own log, decided by the same policy, comes out the same."""
    audit_id = running.refused(running.gateway.login("carol").token)
    wait_for_event(running, audit_id)
    log = Path(running.gateway.site.audit_log)
    done = running.program("policy", "replay", "--config", "gateway.yaml", str(log))
    assert (done.returncode, "decided as before" in done.stdout) == (0, True), done.stdout + done.stderr
