"""Withdrawn is withdrawn: by the API, by another process, by the special file; and what is open is cut.

What must come after what is asserted by events: the end of a stream, the next answer. Nothing is measured here.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from ostiary_gateway.sessions import digest
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, Login, ServedGateway, Site, role
from tests.support.streams import SPDY, WEBSOCKET, EchoServer, line
from tests.support.waiting import until

PODS = "/api/v1/namespaces/team/pods"
ADMIN = "/apis/ostiary.dev/v1"
DEV = "pods pods/exec pods/portforward pods/log"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
PROGRAM = """
import asyncio, sys
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
tokens = Tokens(SqliteTokenStore(sys.argv[1]))
print(asyncio.run(tokens.revoke(RevocationKind.USER, sys.argv[2], by="another process")))
"""


@dataclass(frozen=True)
class Running:
    site: Site
    gateway: ServedGateway
    cluster: Cluster

    @property
    def admin(self) -> str:
        """A token of the administrator; a new one, because some tests withdraw everybody's."""
        return self.gateway.login("root").token

    def post(self, **revocation: str) -> httpx.Response:
        with self.gateway.http(self.admin) as http:
            return http.post(f"{ADMIN}/revocations", json=revocation)

    def until_refused(self, token: str) -> None:
        """Ask until the token is no good any more: somebody else told the gateway, and there is no other sign."""
        with self.gateway.http(token) as http:
            until(lambda: http.get(PODS).status_code == 401)


@pytest.fixture(scope="module")
def running(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.users("alice", "bob", "root")
    site.groups({"dev": ["alice"]})
    site.policy(
        *(role("team", DEV, User=name) for name in ("alice", "bob")),
        role("team", DEV, Group="dev"),
        role("", OURS, User="root"),
    )
    groups = [{"name": "teams", "type": "file", "path": "groups.yaml"}]
    with Cluster(ca) as cluster, EchoServer() as echo:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web", ports={80: echo.port})
        sections: dict[str, Any] = {"upstreams": [site.impersonating(cluster)], "groups": groups}
        with site.serving(tokens={"revocationFile": "revoked"}, **sections) as gateway:
            yield Running(site, gateway, cluster)


def by_api(running: Running) -> None:
    assert running.post(type="user", value="alice").json()["ended"] >= 1


def by_another_process(running: Running) -> None:
    command = [sys.executable, "-c", PROGRAM, str(running.site.folder / "tokens.db"), "alice"]
    assert int(subprocess.run(command, check=True, capture_output=True, timeout=SECONDS).stdout) >= 1


def by_the_file(running: Running) -> None:
    said = sum("of the revocation file" in row for row in running.gateway.lines)
    with (running.site.folder / "revoked").open("a") as revoked:
        revoked.write("user alice\n")
    running.gateway.line("of the revocation file", after=said)


ways = pytest.mark.parametrize("withdraw", [by_api, by_another_process, by_the_file])


class Watching:
    """An open watch; `ended` is set when the client has seen its end."""

    def __init__(self, gateway: ServedGateway, token: str) -> None:
        self.opened, self.ended = threading.Event(), threading.Event()
        self._http = gateway.http(token)
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watching:
        self._thread.start()
        assert self.opened.wait(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def _watch(self) -> None:
        try:
            with self._http.stream("GET", f"{PODS}?watch=true") as answer:
                assert answer.status_code == 200
                for _ in answer.iter_lines():
                    self.opened.set()
        except httpx.HTTPError:
            pass
        finally:
            self.ended.set()


class TestOpenStreams:
    @ways
    def test_a_watch_is_cut_and_that_of_somebody_else_is_not(
        self, running: Running, withdraw: Callable[[Running], None]
    ) -> None:
        """S64, S65."""
        alice, bob = running.gateway.login("alice").token, running.gateway.login("bob").token
        before = len(running.cluster.requests)
        with Watching(running.gateway, alice) as hers, Watching(running.gateway, bob) as his:
            withdraw(running)
            assert hers.ended.wait(SECONDS)
            running.until_refused(alice)
            assert not his.ended.is_set()
            assert running.gateway.get(PODS, bob).status_code == 200
            watches = [record for record in running.cluster.requests[before:] if record.flag("watch")]
            (ended,) = [each for each in watches if each.user and each.user.username == "alice"]
            # The cluster's side is closed, too: nothing is read on in the name of somebody who is out.
            assert ended.ended.wait(SECONDS)
            # Who signs in again is in again.
            assert running.gateway.get(PODS, running.gateway.login("alice").token).status_code == 200
            with running.gateway.http(bob) as http:
                http.post("/auth/logout")
            assert his.ended.wait(SECONDS)

    @pytest.mark.needs("kubectl")
    @pytest.mark.parametrize("transport", [WEBSOCKET, SPDY], ids=["websocket", "spdy"])
    def test_exec_and_port_forward_are_cut(self, running: Running, transport: dict[str, str]) -> None:
        """S64: raw streams, in which the gateway sees only bytes."""
        kubectl = running.gateway.kubectl(running.gateway.login("alice").token, **transport)
        with ExitStack() as stack:
            executing = stack.enter_context(kubectl.running("exec", "-i", "web", "--", "sh", "-c", "echo $$; exec cat"))
            process = int(line(executing))
            forwarding = stack.enter_context(kubectl.running("port-forward", "--address=127.0.0.1", "pod/web", ":80"))
            told = re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> 80\n", line(forwarding))
            assert told is not None
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", int(told[1])), timeout=SECONDS))
            connection.sendall(b"hello")
            assert connection.recv(5) == b"HELLO"
            by_api(running)
            assert connection.recv(1) == b""
            executing.wait(SECONDS)
            records = [each for each in running.cluster.requests if each.path.startswith(f"{PODS}/web/")]
            assert all(record.ended.wait(SECONDS) for record in records)
        assert not Path(f"/proc/{process}").exists()

    def test_a_stream_that_the_new_policy_forbids_is_cut(self, site: Site, ca: trustme.CA) -> None:
        """S44: not a revocation, but as good as one for what is open."""
        site.users("alice")
        site.policy(role("team", DEV, User="alice"))
        with Cluster(ca) as cluster:
            cluster.add_namespace("team")
            cluster.add_pod("team", "web")
            with site.serving(upstreams=[site.impersonating(cluster)]) as gateway:
                token = gateway.login("alice").token
                with Watching(gateway, token) as watching:
                    site.policy()
                    gateway.signal(signal.SIGHUP)
                    assert watching.ended.wait(SECONDS)
                assert gateway.get(PODS, token).status_code == 403


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    return Site(tmp_path / "gateway", ca)


class TestAdminApi:
    """``/apis/ostiary.dev/v1``: resources like any other, for whoever the policy allows them."""

    @pytest.mark.parametrize("kind", ["user", "group", "before", "session"])
    def test_a_revocation_that_lies_ahead_is_refused_and_locks_nobody_out(self, running: Running, kind: str) -> None:
        login = running.gateway.login("alice")
        value = {"value": "alice"} if kind != "before" else {}
        answer = running.post(type=kind, before="2099-01-01T00:00:00Z", **value)
        assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")
        assert running.gateway.get(PODS, login.token).status_code == 200
        assert running.gateway.get(PODS, running.gateway.login("alice").token).status_code == 200

    def test_a_mark_can_be_listed_and_taken_back(self, running: Running) -> None:
        assert running.post(type="group", value="nobody is in it").status_code == 201
        with running.gateway.http(running.admin) as http:
            (mark,) = [
                item for item in http.get(f"{ADMIN}/revocations").json()["items"] if item["value"] == "nobody is in it"
            ]
            assert (mark["type"], mark["by"]) == ("group", "root")
            about = {"type": "group", "value": "nobody is in it"}
            assert http.delete(f"{ADMIN}/revocations", params=about).json()["undone"] == 1
            assert http.delete(f"{ADMIN}/revocations", params=about).status_code == 404
            assert http.delete(f"{ADMIN}/revocations", params={"type": "nonsense"}).status_code == 400
        with running.gateway.http(running.gateway.login("bob").token) as http:
            assert http.delete(f"{ADMIN}/revocations", params=about).status_code in (403, 404)

    @pytest.mark.parametrize("kind", ["token", "digest", "session", "user", "group", "before", "delete", "renewal"])
    def test_each_kind_of_revocation_ends_what_it_names(self, running: Running, kind: str) -> None:
        """S64, S65: the very next request is refused."""
        login = running.gateway.login("alice")
        assert running.gateway.get(PODS, login.token).status_code == 200
        admin = running.admin
        code = self._withdraw(running, kind, login)
        assert code == (200 if kind == "delete" else 201)
        expected = 200 if kind == "renewal" else 401
        assert running.gateway.get(PODS, login.token).status_code == expected
        if kind not in ("token", "digest"):
            with running.gateway.http() as http:
                assert http.post("/auth/renew", data={"renewal_token": login.renewal_token}).status_code == 401
        assert running.gateway.get(f"{ADMIN}/sessions", admin).status_code == (401 if kind == "before" else 200)

    def _withdraw(self, running: Running, kind: str, login: Login) -> int:
        if kind == "delete":
            with running.gateway.http(running.admin) as http:
                return http.delete(f"{ADMIN}/sessions/{login.session}").status_code
        bodies = {
            "token": {"type": "token", "value": login.token},
            "digest": {"type": "token", "value": digest(login.token).hex()},
            "renewal": {"type": "token", "value": login.renewal_token},
            "session": {"type": "session", "value": login.session},
            "user": {"type": "user", "value": "alice"},
            "group": {"type": "group", "value": "dev"},
            "before": {"type": "before", "before": datetime.now(UTC).isoformat()},
        }
        return running.post(**bodies[kind]).status_code

    def test_sessions_are_listed_without_anything_that_opens_a_door(self, running: Running) -> None:
        login = running.gateway.login("alice")
        answer = running.gateway.get(f"{ADMIN}/sessions?user=alice", running.admin)
        (mine,) = [item for item in answer.json()["items"] if item["id"] == login.session]
        assert (mine["user"], mine["groups"], mine["provider"]) == ("alice", ["dev"], "staff")
        assert login.token not in answer.text
        assert login.renewal_token not in answer.text

    @pytest.mark.parametrize("user", ["alice", "bob"])
    def test_who_may_not_is_not_let(self, running: Running, user: str) -> None:
        """S67: nobody is an administrator by being signed in."""
        token = running.gateway.login(user).token
        with running.gateway.http(token) as http:
            refused = [
                http.get(f"{ADMIN}/sessions"),
                http.post(f"{ADMIN}/revocations", json={"type": "user", "value": "root"}),
                http.delete(f"{ADMIN}/sessions/any"),
            ]
        assert {answer.status_code for answer in refused} <= {403, 404}
        assert running.gateway.get(f"{ADMIN}/sessions", running.admin).status_code == 200

    @pytest.mark.parametrize(
        "body",
        [
            b"{not json",
            b"[]",
            b'{"type":"nobody"}',
            b'{"type":"user"}',
            b'{"type":"before"}',
            b'{"type":"token","value":"x"}',
        ],
    )
    def test_what_cannot_be_understood_revokes_nothing(self, running: Running, body: bytes) -> None:
        with running.gateway.http(running.admin) as http:
            answer = http.post(f"{ADMIN}/revocations", content=body)
        assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")

    def test_a_refusal_can_be_explained_by_its_id(self, running: Running) -> None:
        """S52: to the operator, who was given the id by whoever was refused."""
        token = running.gateway.login("alice").token
        with running.gateway.http(token) as http:
            refused = http.get("/api/v1/namespaces/team/secrets/x")
        told = running.gateway.get(f"{ADMIN}/decisions/{refused.headers['Audit-Id']}", running.admin).json()
        assert (told["attributes"]["user"], told["attributes"]["resource"]) == ("alice", "secrets")
        assert told["now"]["decision"]["verdict"] != "allow"


class TestAFollowerThatFails:
    def test_what_is_withdrawn_while_nobody_follows_is_not_missed(self, site: Site, ca: trustme.CA) -> None:
        """S64, T3: the store was out of reach for a moment; what happened in it counts all the same."""
        site.users("alice")
        site.policy(role("team", DEV, User="alice"))
        with Cluster(ca) as cluster:
            cluster.add_namespace("team")
            with site.in_process(upstreams=[site.impersonating(cluster)]) as gateway:
                token = gateway.login("alice").token
                assert gateway.get(PODS, token).status_code == 200
                app = gateway.worker.app
                gateway.call(app.stop_background)
                command = [sys.executable, "-c", PROGRAM, str(site.folder / "tokens.db"), "alice"]
                subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)

                async def again() -> None:
                    app.start()

                gateway.call(again)
                with gateway.http(token) as http:
                    until(lambda: http.get(PODS).status_code == 401)
