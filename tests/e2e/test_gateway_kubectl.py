"""The real kubectl through a real gateway: it works as it does at the cluster, for whoever the policy lets.

One gateway stands before one cluster twice: under the name localhost it impersonates with a token, and under
127.0.0.1 it says who asks by ``X-Remote-*`` over mTLS. Every test is done in both ways.
"""

from __future__ import annotations

import json
import re
import socket
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trustme

from ostiary.model import UserInfo
from tests.support.cluster import Cluster, Record
from tests.support.cluster.client import Kubectl
from tests.support.gateway import Login, ServedGateway, Site, role
from tests.support.streams import SPDY, WEBSOCKET, EchoServer, line

pytestmark = pytest.mark.needs("kubectl")

PEOPLE = ("alice", "bob", "carol", "dave", "erin")
ODD_GROUP = "a,system:masters"
GROUPS = {"dev": ["alice"], ODD_GROUP: ["alice"], "never mentioned": ["alice"]}
DEV = "pods pods/exec pods/portforward pods/log configmaps"
READER = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
# What is enough to open a shell where only the verb of the HTTP method is asked for.
EXEC_BY_GET = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}
AS_CAROL = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["carol"]}
AS_KNOWN = {**AS_CAROL, "resources": ["groups"], "resourceNames": ["system:authenticated"]}
CONFIG_MAP: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"colour": "green"}}

CLAIMS = [
    *("X-Remote-User", "x_remote_user", "X-Remote_Group", "X-REMOTE-GROUP", "X-Remote-Uid", "X-Remote-Extra-Scope"),
    *("X-Forwarded-User", "X_Forwarded_For", "X-Forwarded-For", "Forwarded", "X-Real-Ip", "X-Original-URL"),
    *("Proxy-Authorization", "X-Ostiary-User", "X-Auth-Request-User"),
]

both_transports = pytest.mark.parametrize("transport", [WEBSOCKET, SPDY], ids=["websocket", "spdy"])


@dataclass(frozen=True)
class Door:
    """One of the two ways through the gateway, and the tokens of those who take it."""

    gateway: ServedGateway
    cluster: Cluster
    host: str
    users: dict[str, Login]

    def kubectl(self, user: str, **environment: str) -> Kubectl:
        return self.gateway.kubectl(self.users[user].token, host=self.host, **environment)

    @property
    def impersonates(self) -> bool:
        return self.host == "localhost"

    def records(self, path: str) -> list[Record]:
        return [record for record in self.cluster.requests if record.path == path]


@pytest.fixture(scope="module")
def doors(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Door]]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.users(*PEOPLE)
    site.groups(GROUPS)
    site.policy(
        role("team", DEV, Group="dev"),
        role("team", READER, User="carol"),
        role("team", READER, EXEC_BY_GET, User="erin"),
        role("odd", "configmaps", Group=ODD_GROUP),
        role("", AS_CAROL, User="dave"),
        role("", AS_KNOWN, User="dave"),
    )
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_namespace("odd")
        upstreams = [
            site.impersonating(cluster, hosts=["localhost"]),
            {**site.by_request_header(cluster, hosts=["127.0.0.1"]), "name": "by-header"},
        ]
        groups = [{"name": "teams", "type": "file", "path": "groups.yaml"}]
        with site.serving(upstreams=upstreams, groups=groups) as gateway:
            users = {name: gateway.login(name) for name in PEOPLE}
            yield {host: Door(gateway, cluster, host, users) for host in ("localhost", "127.0.0.1")}


@pytest.fixture(params=["localhost", "127.0.0.1"], ids=["impersonation", "requestHeader"])
def door(doors: dict[str, Door], request: pytest.FixtureRequest) -> Door:
    return doors[request.param]


@pytest.fixture
def pod(door: Door) -> str:
    """A pod that no other test knows."""
    name = f"web-{uuid4().hex[:8]}"
    door.cluster.add_pod("team", name, log=b"one\n")
    return name


class TestReadingAndWriting:
    def test_get_shows_what_is_there(self, door: Door, pod: str) -> None:
        kubectl = door.kubectl("alice")
        assert f"{pod} " in kubectl.output("get", "pods")
        assert f"name: {pod}\n" in kubectl.output("get", "pod", pod, "-o", "yaml")
        missing = kubectl("get", "pod", "nope")
        assert (missing.returncode, missing.stderr) == (1, 'Error from server (NotFound): pods "nope" not found\n')

    def test_create_apply_and_delete(self, door: Door) -> None:
        kubectl = door.kubectl("alice")
        name = f"settings-{uuid4().hex[:8]}"
        content = {**CONFIG_MAP, "metadata": {"name": name}}
        assert kubectl.output("create", "-f", "-", stdin=json.dumps(content)) == f"configmap/{name} created\n"
        changed = json.dumps({**content, "data": {"colour": "blue"}})
        assert f"configmap/{name} configured\n" in kubectl.output("apply", "-f", "-", stdin=changed)
        assert door.cluster.get("configmaps", "team", name)["data"] == {"colour": "blue"}
        assert kubectl.output("delete", "configmap", name) == f'configmap "{name}" deleted\n'
        assert "NotFound" in kubectl("get", "configmap", name).stderr

    def test_watch_shows_changes_as_they_happen(self, door: Door, pod: str) -> None:
        selector = f"metadata.name={pod}-2"
        with door.kubectl("alice").running("get", "pods", "--watch", "-o", "name", "--field-selector", selector) as run:
            watch = door.cluster.wait_for(lambda record: record.flag("watch") and selector in str(record.query))
            door.cluster.add_pod("team", f"{pod}-2")
            assert line(run) == f"pod/{pod}-2\n"
            assert not watch.ended.is_set()
        # Who no longer listens at the gateway no longer listens at the cluster.
        assert watch.ended.wait(30)

    def test_logs_are_followed(self, door: Door, pod: str) -> None:
        with door.kubectl("alice").running("logs", "-f", pod) as following:
            assert line(following) == "one\n"
            door.cluster.append_log("team", pod, b"two\n")
            assert line(following) == "two\n"
            door.cluster.end_log("team", pod)
            assert following.wait(30) == 0


class TestStreams:
    @both_transports
    def test_exec_carries_input_output_and_exit_code(self, door: Door, pod: str, transport: dict[str, str]) -> None:
        kubectl = door.kubectl("alice", **transport)
        text = "".join(f"line {number}\n" for number in range(5000))
        assert kubectl.output("exec", "-i", pod, "--", "cat", stdin=text) == text
        failing = kubectl("exec", pod, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        assert (failing.returncode, failing.stdout) == (7, "out\n")
        assert "err\n" in failing.stderr
        record = door.records(f"/api/v1/namespaces/team/pods/{pod}/exec")[0]
        assert record.value("Upgrade") == ("SPDY/3.1" if transport else "websocket")
        assert record.user is not None
        assert record.user.username == "alice"

    @both_transports
    def test_port_forward_reaches_the_port(self, door: Door, transport: dict[str, str]) -> None:
        name = f"web-{uuid4().hex[:8]}"
        with EchoServer() as echo:
            door.cluster.add_pod("team", name, ports={80: echo.port})
            kubectl = door.kubectl("alice", **transport)
            with kubectl.running("port-forward", "--address=127.0.0.1", f"pod/{name}", ":80") as run:
                told = re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> 80\n", line(run))
                assert told is not None
                for _ in range(2):
                    with socket.create_connection(("127.0.0.1", int(told[1])), timeout=30) as connection:
                        connection.sendall(b"hello" * 50_000)
                        connection.shutdown(socket.SHUT_WR)
                        with connection.makefile("rb") as answer:
                            assert answer.read() == b"HELLO" * 50_000
        (record,) = door.records(f"/api/v1/namespaces/team/pods/{name}/portforward")
        assert record.value("Upgrade") == ("SPDY/3.1" if transport else "websocket")
        assert record.ended.wait(30)

    def test_a_websocket_needs_the_right_to_create(self, door: Door, pod: str) -> None:
        """A GET that opens a shell is more than reading: the right to get pods/exec is not enough."""
        refused = door.kubectl("erin", **WEBSOCKET)("exec", pod, "--", "true")
        assert refused.returncode == 1
        assert 'User "erin" cannot create resource "pods/exec"' in refused.stderr
        assert door.records(f"/api/v1/namespaces/team/pods/{pod}/exec") == []


class TestRefusals:
    def test_a_refusal_is_told_in_kubectls_usual_words(self, door: Door, pod: str) -> None:
        """S52: some permission there, but not this one."""
        refused = door.kubectl("carol")("delete", "pod", pod)
        words = (
            f'pods "{pod}" is forbidden: User "carol" cannot delete resource "pods" in API group "" in the namespace'
        )
        assert (refused.returncode, refused.stderr) == (1, f'Error from server (Forbidden): {words} "team"\n')
        assert door.cluster.get("pods", "team", pod)

    @pytest.mark.parametrize(
        "command",
        [
            ("delete", "pod", "{pod}", "--ignore-not-found"),
            ("delete", "pods", "--all", "--ignore-not-found"),
            ("wait", "pod/{pod}", "--for=delete", "--timeout=60s"),
            ("get", "pod", "{pod}", "--ignore-not-found"),
            ("patch", "pod", "{pod}", "--patch={{}}"),
            ("get", "pods", "--watch"),
        ],
        ids=" ".join,
    )
    def test_a_refusal_where_the_user_may_do_nothing_is_no_success(
        self, door: Door, pod: str, command: tuple[str, ...]
    ) -> None:
        """kubectl and controllers take a 404 to mean that the object is gone."""
        refused = door.kubectl("bob")(*(word.format(pod=pod) for word in command))
        assert refused.returncode == 1
        assert "Forbidden" in refused.stderr
        assert door.cluster.get("pods", "team", pod)
        assert door.records(f"/api/v1/namespaces/team/pods/{pod}") == []

    def test_a_bad_token_is_unauthorized(self, door: Door) -> None:
        """S39."""
        bad = door.gateway.kubectl("ost_no_such_token", host=door.host)("get", "pods")
        assert bad.returncode == 1
        assert "Unauthorized" in bad.stderr or "must be logged in" in bad.stderr


class TestQuestionsAboutOneself:
    def test_can_i_tells_the_truth_about_our_policy(self, door: Door) -> None:
        """The cluster behind would say yes to everything."""
        kubectl = door.kubectl("carol")
        assert kubectl.output("auth", "can-i", "get", "pods") == "yes\n"
        assert kubectl("auth", "can-i", "delete", "pods").stdout == "no\n"
        rows = [row.split() for row in kubectl.output("auth", "can-i", "--list").splitlines()]
        assert ["pods", "[]", "[]", "[get", "list]"] in rows

    def test_whoami_shows_what_the_token_attests(self, door: Door) -> None:
        shown = json.loads(door.kubectl("alice").output("auth", "whoami", "-o", "json"))
        user = shown["status"]["userInfo"]
        assert user["username"] == "alice"
        assert set(user["groups"]) >= set(door.users["alice"].groups)

    def test_as_is_allowed_by_policy(self, door: Door, pod: str) -> None:
        kubectl = door.kubectl("dave")
        assert pod in kubectl.output("get", "pods", "--as=carol")
        record = door.records("/api/v1/namespaces/team/pods")[-1]
        assert record.user == UserInfo("carol", groups=("system:authenticated",))

    def test_as_a_group_that_the_cluster_adds_itself_is_not_passed_on(self, door: Door, pod: str) -> None:
        """The role of an impersonating gateway has no permission for it, and needs none."""
        kubectl = door.kubectl("dave")
        assert pod in kubectl.output("get", "pods", "--as=carol", "--as-group=system:authenticated")
        record = door.records("/api/v1/namespaces/team/pods")[-1]
        assert record.user == UserInfo("carol", groups=("system:authenticated",))
        assert record.values("Impersonate-Group") == []

    @pytest.mark.parametrize(
        ("flags", "what"),
        [
            (["--as=alice"], 'users "alice" is forbidden: User "dave" cannot impersonate resource "users"'),
            (["--as=carol", "--as-group=dev"], 'groups "dev" is forbidden: User "dave" cannot impersonate'),
        ],
    )
    def test_as_is_refused_by_policy(self, door: Door, flags: list[str], what: str) -> None:
        # What the server offers is asked first, if it is not known yet; and of its refusal kubectl says but "unknown".
        door.kubectl("dave")("api-resources")
        before = len(door.cluster.requests)
        refused = door.kubectl("dave")("get", "pods", *flags)
        assert refused.returncode == 1
        assert f"Error from server (Forbidden): {what}" in refused.stderr
        assert all(record.path != "/api/v1/namespaces/team/pods" for record in door.cluster.requests[before:])

    def test_who_is_taken_for_another_may_do_no_more_than_that_one(self, door: Door, pod: str) -> None:
        refused = door.kubectl("dave")("delete", "pod", pod, "--as=carol")
        assert 'User "carol" cannot delete resource "pods"' in refused.stderr


class TestWhatArrives:
    """What the cluster was told about who asks: all that the token says, and nothing that the client said."""

    def test_user_and_groups_are_the_tokens(self, door: Door, pod: str) -> None:
        """S11, S40, H6: one line for each group, also for one that looks like two."""
        login = door.users["alice"]
        assert set(login.groups) == {"dev", ODD_GROUP}
        door.kubectl("alice").output("get", "pod", pod)
        record = door.records(f"/api/v1/namespaces/team/pods/{pod}")[-1]
        assert record.user is not None
        assert (record.user.username, set(record.user.groups)) == ("alice", {*login.groups, "system:authenticated"})
        name = "Impersonate" if door.impersonates else "X-Remote"
        assert record.values(f"{name}-User") == ["alice"]
        assert sorted(record.values(f"{name}-Group")) == sorted(login.groups)

    def test_an_odd_group_opens_its_own_door_only(self, door: Door) -> None:
        """H6."""
        kubectl = door.kubectl("alice")
        assert kubectl.output("auth", "can-i", "get", "configmaps", "-n", "odd") == "yes\n"
        # Who were in system:masters could do everything.
        assert kubectl("auth", "can-i", "get", "secrets", "-n", "odd").stdout == "no\n"

    def test_no_claim_of_the_client_arrives(self, door: Door, pod: str) -> None:
        """H1, H5, H8: neither in the usual spelling nor in one that some backends take for it."""
        path, token = f"/api/v1/namespaces/team/pods/{pod}", door.users["alice"].token
        with door.gateway.http(token, host=door.host) as http:
            answer = http.get(path, headers=[*((name, "claimed") for name in CLAIMS), ("X-Harmless", "yes")])
        assert answer.status_code == 200
        (record,) = door.records(path)
        assert b"claimed" not in record.head
        assert token.encode() not in record.head
        assert record.value("X-Harmless") == "yes"
        assert record.user is not None
        assert record.user.username == "alice"

    @pytest.mark.parametrize("name", ["Impersonate-User", "impersonate_user", "Impersonate_User"])
    def test_impersonation_in_any_spelling_is_a_question_to_our_policy(self, door: Door, pod: str, name: str) -> None:
        """H1, H5."""
        path = f"/api/v1/namespaces/team/pods/{pod}"
        with door.gateway.http(door.users["alice"].token, host=door.host) as http:
            answer = http.get(path, headers=[(name, "root")])
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
        assert door.records(path) == []

    def test_a_browsers_token_does_not_arrive_beside_its_protocol(self, door: Door, pod: str) -> None:
        """H8: a WebSocket carries its token as a subprotocol."""
        token = door.users["alice"].token
        offered = f"base64url.bearer.authorization.k8s.io.{urlsafe_b64encode(token.encode()).decode().rstrip('=')}"
        path = f"/api/v1/namespaces/team/pods/{pod}/exec"
        headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "AQIDBAUGBwgJCgsMDQ4PEA=="),
            ("Sec-WebSocket-Protocol", f"{offered}, v5.channel.k8s.io"),
        ]
        with (
            door.gateway.http(host=door.host) as http,
            http.stream("GET", f"{path}?command=true&stdout=1", headers=headers) as answer,
        ):
            assert answer.status_code == 101
        (record,) = door.records(path)
        assert record.values("Sec-WebSocket-Protocol") == ["v5.channel.k8s.io"]
        assert record.user is not None
        assert record.user.username == "alice"


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    return Site(tmp_path / "gateway", ca)


def test_reads_are_hidden_when_the_operator_says_so_and_nothing_else_is(site: Site, ca: trustme.CA) -> None:
    """S51, S54, S55: hideDenied: true."""
    site.users("bob")
    chain = [{"name": "cluster", "type": "rbac", "paths": ["policy"]}]
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        upstreams = [site.impersonating(cluster)]
        authorization = {"chain": chain, "hideDenied": True}
        with site.in_process(upstreams=upstreams, authorization=authorization) as gateway:
            kubectl = gateway.kubectl(gateway.login("bob").token)
            hidden, nowhere = kubectl("get", "pod", "web"), kubectl("get", "pod", "web", "--namespace=nowhere")
            # kubectl itself looks for the namespace when it does not find the object.
            words = 'Error from server (NotFound): namespaces "team" not found\n'
            assert (hidden.returncode, hidden.stderr) == (1, words)
            assert nowhere.stderr == hidden.stderr.replace("team", "nowhere")
            assert "NotFound" in kubectl("get", "pods").stderr
            deleted = kubectl("delete", "pod", "web", "--ignore-not-found")
            assert (deleted.returncode, "Forbidden" in deleted.stderr) == (1, True)
        assert cluster.get("pods", "team", "web")
        assert [record for record in cluster.requests if "/pods/web" in record.path] == []


@pytest.mark.parametrize("what", ["certificate", "name"])
def test_the_cluster_believes_only_the_right_certificate(site: Site, ca: trustme.CA, what: str) -> None:
    """It is the cluster that refuses us here, and no user is taken for another."""
    site.users("carol")
    site.policy(role("team", READER, User="carol"))
    with Cluster(ca) as cluster:
        upstream = site.by_request_header(cluster, common_name="somebody" if what == "name" else "front-proxy")
        if what == "certificate":
            site._write_leaf("proxy", cluster.certificate("front-proxy"))
        with site.in_process(upstreams=[upstream]) as gateway:
            answer = gateway.get("/api/v1/namespaces/team/pods", gateway.login("carol").token)
        # The gateway may ask for its own credential's sake, too.
        (record,) = cluster.to("/api/v1/namespaces/team/pods")
    assert record.user is None or record.user.username == "front-proxy"
    # Never a 401: the user's own credential is in order.
    assert answer.status_code == (503 if what == "name" else 200)
