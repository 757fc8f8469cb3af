"""The tests' own API server is one that the real kubectl works with, and one that believes only what it should.

What stands here is tried without a gateway between, so that a failure with one is the gateway's.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import kubernetes
import kubernetes.stream
import pytest
import trustme

from ostiary.model import UserInfo
from tests.support.cluster import Asked, Cluster, Record
from tests.support.cluster.client import Kubectl
from tests.support.streams import SPDY, WEBSOCKET, EchoServer, line

pytest_plugins = ["tests.support.cluster.fixtures"]
needs_kubectl = pytest.mark.needs("kubectl")

both_transports = pytest.mark.parametrize("transport", [WEBSOCKET, SPDY], ids=["websocket", "spdy"])

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"colour": "green"}}
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "shop"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "shop"}},
        "template": {
            "metadata": {"labels": {"app": "shop"}},
            "spec": {"containers": [{"name": "web", "image": "web:1"}, {"name": "cache", "image": "cache:1"}]},
        },
    },
}


def client(
    cluster: Cluster, ca: trustme.CA, certificate: trustme.LeafCert | None = None, **options: Any
) -> httpx.Client:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return httpx.Client(base_url=cluster.url, verify=context, **{"timeout": 30, **options})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def jane(cluster: Cluster, ca: trustme.CA) -> Iterator[httpx.Client]:
    with client(cluster, ca, headers=bearer(cluster.add_token("jane"))) as http:
        yield http


@needs_kubectl
class TestKubectl:
    def test_get_shows_what_is_there(self, cluster: Cluster, kubectl: Kubectl) -> None:
        cluster.add_pod("default", "web", labels={"app": "web"})
        cluster.add_pod("default", "db")
        cluster.add_pod("kube-system", "dns")
        assert [row.split()[0] for row in kubectl.output("get", "pods").splitlines()] == ["NAME", "db", "web"]
        assert kubectl.output("get", "po", "-l", "app=web", "-o", "name") == "pod/web\n"
        assert "kube-system   dns" in kubectl.output("get", "pods", "-A", "-o", "wide")
        assert json.loads(kubectl.output("get", "pod", "web", "-o", "json"))["spec"]["nodeName"] == "node-1"
        assert "phase: Active" in kubectl.output("get", "namespace", "default", "-o", "yaml")

    def test_what_is_missing_is_said_in_kubernetes_words(self, kubectl: Kubectl) -> None:
        missing = kubectl("get", "pod", "nope")
        assert (missing.returncode, missing.stderr) == (1, 'Error from server (NotFound): pods "nope" not found\n')

    def test_create_then_delete(self, cluster: Cluster, kubectl: Kubectl) -> None:
        created = kubectl.output("create", "-f", "-", stdin=json.dumps(CONFIG_MAP))
        assert created == "configmap/settings created\n"
        again = kubectl("create", "-f", "-", stdin=json.dumps(CONFIG_MAP))
        assert 'configmaps "settings" already exists' in again.stderr
        assert kubectl.output("delete", "configmap", "settings") == 'configmap "settings" deleted\n'
        assert "NotFound" in kubectl("get", "configmap", "settings").stderr

    def test_apply_creates_and_then_merges(self, cluster: Cluster, kubectl: Kubectl) -> None:
        assert kubectl.output("apply", "-f", "-", stdin=json.dumps(DEPLOYMENT)) == "deployment.apps/shop created\n"
        changed = json.loads(json.dumps(DEPLOYMENT))
        changed["spec"]["template"]["spec"]["containers"][0]["image"] = "web:2"
        del changed["spec"]["template"]["spec"]["containers"][1]
        assert kubectl.output("apply", "-f", "-", stdin=json.dumps(changed)) == "deployment.apps/shop configured\n"
        assert kubectl.output("apply", "-f", "-", stdin=json.dumps(changed)) == "deployment.apps/shop unchanged\n"
        stored = cluster.get("deployments", "default", "shop")
        assert stored["spec"]["template"]["spec"]["containers"] == [{"name": "web", "image": "web:2"}]
        assert stored["spec"]["replicas"] == 1

    def test_watch_shows_changes_as_they_happen(self, cluster: Cluster, kubectl: Kubectl) -> None:
        cluster.add_pod("default", "first")
        with kubectl.running("get", "pods", "--watch", "-o", "name") as watching:
            assert line(watching) == "pod/first\n"
            cluster.add_pod("default", "second")
            assert line(watching) == "pod/second\n"
            watch = cluster.wait_for(lambda record: record.flag("watch"))
            assert not watch.ended.is_set()
        assert watch.ended.wait(30)

    def test_logs_and_following_them(self, cluster: Cluster, kubectl: Kubectl) -> None:
        cluster.add_pod("default", "web", log=b"one\ntwo\n")
        assert kubectl.output("logs", "web") == "one\ntwo\n"
        assert kubectl.output("logs", "web", "--tail=1") == "two\n"
        with kubectl.running("logs", "-f", "web") as following:
            assert [line(following), line(following)] == ["one\n", "two\n"]
            cluster.append_log("default", "web", b"three\n")
            assert line(following) == "three\n"
            cluster.end_log("default", "web")
            assert following.wait(30) == 0

    @both_transports
    def test_exec_runs_a_process(self, cluster: Cluster, kubectl: Kubectl, transport: dict[str, str]) -> None:
        cluster.add_pod("default", "web", containers=("main", "side"))
        run = Kubectl(kubectl.kubeconfig, **transport)
        done = run("exec", "web", "-c", "side", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
        assert (done.returncode, done.stdout) == (3, "out\n")
        assert done.stderr == "err\ncommand terminated with exit code 3\n"
        upgrade = cluster.to("/api/v1/namespaces/default/pods/web/exec")[-1]
        assert (upgrade.status, upgrade.value("Upgrade")) == (101, "SPDY/3.1" if transport else "websocket")
        assert upgrade.method == ("POST" if transport else "GET")

    @both_transports
    def test_exec_passes_input_until_its_end(
        self, cluster: Cluster, kubectl: Kubectl, transport: dict[str, str]
    ) -> None:
        cluster.add_pod("default", "web")
        run = Kubectl(kubectl.kubeconfig, **transport)
        text = "".join(f"line {number}\n" for number in range(20_000))
        assert run.output("exec", "-i", "web", "--", "cat", stdin=text) == text

    @both_transports
    def test_a_process_ends_with_its_exec(self, cluster: Cluster, kubectl: Kubectl, transport: dict[str, str]) -> None:
        cluster.add_pod("default", "web")
        run = Kubectl(kubectl.kubeconfig, **transport)
        with run.running("exec", "web", "--", "sh", "-c", "echo $$; exec sleep 100") as executing:
            process = int(line(executing))
        assert cluster.wait_for(lambda record: record.path.endswith("/exec")).ended.wait(30)
        assert not Path(f"/proc/{process}").exists()

    @both_transports
    def test_a_stream_that_the_cluster_cuts_ends_on_both_sides(
        self, cluster: Cluster, kubectl: Kubectl, transport: dict[str, str]
    ) -> None:
        cluster.add_pod("default", "web")
        run = Kubectl(kubectl.kubeconfig, **transport)
        with run.running("exec", "-i", "web", "--", "sh", "-c", "echo $$; exec cat") as executing:
            process = int(line(executing))
            stream = cluster.wait_for(lambda record: record.path.endswith("/exec"))
            cluster.cut(stream)
            # Over SPDY kubectl takes a lost connection for success.
            assert executing.wait(30) == (0 if transport else 1)
        assert stream.ended.wait(30)
        assert not Path(f"/proc/{process}").exists()

    @both_transports
    def test_a_command_that_is_not_there_is_an_error(
        self, cluster: Cluster, kubectl: Kubectl, transport: dict[str, str]
    ) -> None:
        cluster.add_pod("default", "web")
        run = Kubectl(kubectl.kubeconfig, **transport)
        done = run("exec", "web", "--", "/no/such/command")
        assert done.returncode == 1
        assert "error executing command in container: No such file or directory" in done.stderr

    @both_transports
    def test_port_forward_reaches_the_port_on_loopback(
        self, cluster: Cluster, kubectl: Kubectl, transport: dict[str, str]
    ) -> None:
        run = Kubectl(kubectl.kubeconfig, **transport)
        with EchoServer() as echo, self._forwarding(cluster, run, {80: echo.port}) as forwarded:
            for _ in range(2):
                with socket.create_connection(("127.0.0.1", forwarded), timeout=30) as connection:
                    connection.sendall(b"hello" * 50_000)
                    connection.shutdown(socket.SHUT_WR)
                    with connection.makefile("rb") as answer:
                        assert answer.read() == b"HELLO" * 50_000
        upgrade = cluster.to("/api/v1/namespaces/default/pods/web/portforward")[-1]
        assert upgrade.value("Upgrade") == ("SPDY/3.1" if transport else "websocket")
        assert upgrade.ended.wait(30)

    @both_transports
    def test_a_port_where_nobody_listens_is_an_error(
        self, cluster: Cluster, kubectl: Kubectl, transport: dict[str, str]
    ) -> None:
        run = Kubectl(kubectl.kubeconfig, **transport)
        with (
            self._forwarding(cluster, run, {}) as forwarded,
            socket.create_connection(("127.0.0.1", forwarded), timeout=30) as connection,
        ):
            assert connection.recv(1) == b""

    @contextmanager
    def _forwarding(self, cluster: Cluster, run: Kubectl, ports: dict[int, int]) -> Iterator[int]:
        cluster.add_pod("default", "web", ports=ports)
        with run.running("port-forward", "--address=127.0.0.1", "pod/web", ":80") as process:
            told = re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> 80\n", line(process))
            assert told is not None
            yield int(told[1])

    def test_questions_about_oneself(self, cluster: Cluster, kubectl: Kubectl) -> None:
        cluster.refuse = lambda user, asked: "" if asked.resource == "secrets" else None
        assert "jane" in kubectl.output("auth", "whoami")
        assert kubectl.output("auth", "can-i", "list", "pods") == "yes\n"
        assert kubectl("auth", "can-i", "list", "secrets").stdout == "no\n"
        assert kubectl.output("auth", "can-i", "get", "/healthz") == "yes\n"
        refused = kubectl("get", "secrets")
        expected = 'User "jane" cannot list resource "secrets" in API group "" in the namespace "default"'
        assert refused.stderr == f"Error from server (Forbidden): secrets is forbidden: {expected}\n"

    def test_version_and_api_resources(self, kubectl: Kubectl) -> None:
        assert "Server Version: v1.33.1" in kubectl.output("version")
        listed = kubectl.output("api-resources", "-o", "name").splitlines()
        assert {"pods", "configmaps", "deployments.apps"} <= set(listed)

    def test_a_client_certificate_names_user_and_group(self, cluster: Cluster, tmp_path: Path) -> None:
        leaf = cluster.certificate("joe", group="staff")
        files = {"client-certificate": tmp_path / "joe.pem", "client-key": tmp_path / "joe.key"}
        leaf.cert_chain_pems[0].write_to_path(str(files["client-certificate"]))
        leaf.private_key_pem.write_to_path(str(files["client-key"]))
        user = {name: str(path) for name, path in files.items()}
        kubectl = Kubectl(cluster.kubeconfig(tmp_path / "joe", user))
        assert "[staff system:authenticated]" in kubectl.output("auth", "whoami")

    def test_impersonation_by_kubectl(self, cluster: Cluster, tmp_path: Path) -> None:
        token = cluster.add_token("root", may_impersonate=True)
        kubectl = Kubectl(cluster.kubeconfig(tmp_path / "root", {"token": token}))
        kubectl.output("get", "pods", "--as=jim", "--as-group=a", "--as-group=b", "--as-uid=7")
        asked = cluster.requests[-1]
        assert asked.user == UserInfo("jim", "7", ("a", "b", "system:authenticated"))
        assert asked.authenticated == UserInfo("root", groups=("system:authenticated",))


def test_the_python_clients_exec_works(cluster: Cluster, ca: trustme.CA, tmp_path: Path) -> None:
    """It asks for the fourth version of the channels, which kubectl no longer does."""
    cluster.add_pod("default", "web")
    path = cluster.kubeconfig(tmp_path / "jane", {"token": cluster.add_token("jane")})
    api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(path)))  # type: ignore[no-untyped-call]
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    executing = kubernetes.stream.stream(
        api.connect_get_namespaced_pod_exec,
        "web", "default", command=command, stdout=True, stderr=True, _preload_content=False,
    )  # fmt: skip
    executing.run_forever(timeout=30)
    assert (executing.read_stdout(), executing.read_stderr(), executing.returncode) == ("out\n", "err\n", 3)


class TestIdentity:
    """Gateway specification 2.2, 2.5 and 2.6, as the upstream sees them."""

    def ask(self, cluster: Cluster, http: httpx.Client, headers: list[tuple[str, str]]) -> tuple[int, Record]:
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        answer = http.get("/api/v1/namespaces/default/pods", headers=encoded)
        return answer.status_code, cluster.requests[-1]

    @pytest.mark.parametrize(
        "headers",
        [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic amFuZQ=="}, {"X-Remote-User": "jim"}],
    )
    def test_without_a_good_credential_it_is_401(
        self, cluster: Cluster, ca: trustme.CA, headers: dict[str, str]
    ) -> None:
        with client(cluster, ca) as http:
            answer = http.get("/api/v1/pods", headers=headers)
        assert answer.status_code == 401
        assert answer.content == (
            b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized",'
            b'"reason":"Unauthorized","code":401}\n'
        )

    def test_each_impersonated_group_is_one_group(self, cluster: Cluster, ca: trustme.CA) -> None:
        token = cluster.add_token("gateway", may_impersonate=True)
        headers = [
            ("Impersonate-User", "jané"),
            ("Impersonate-Group", "a,b"),
            ("Impersonate-Group", "c"),
            ("Impersonate-Extra-Example.test%2fscopes", "read"),
            ("Impersonate-Extra-Example.test%2fscopes", "write"),
        ]
        with client(cluster, ca, headers=bearer(token)) as http:
            status, record = self.ask(cluster, http, headers)
        extra = (("example.test/scopes", ("read", "write")),)
        assert status == 200
        assert record.user == UserInfo("jané", "", ("a,b", "c", "system:authenticated"), extra)

    def test_groups_without_a_user_are_400(self, cluster: Cluster, ca: trustme.CA) -> None:
        token = cluster.add_token("gateway", may_impersonate=True)
        with client(cluster, ca, headers=bearer(token)) as http:
            assert self.ask(cluster, http, [("Impersonate-Group", "system:masters")])[0] == 400

    def test_who_may_not_impersonate_is_told_so(self, cluster: Cluster, jane: httpx.Client) -> None:
        status, record = self.ask(cluster, jane, [("Impersonate-User", "root")])
        assert (status, record.user) == (403, None)

    def test_an_impersonated_service_account_has_its_groups(self, cluster: Cluster, ca: trustme.CA) -> None:
        token = cluster.add_token("gateway", may_impersonate=True)
        with client(cluster, ca, headers=bearer(token)) as http:
            _, record = self.ask(cluster, http, [("Impersonate-User", "system:serviceaccount:shop:bot")])
        groups = ("system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated")
        assert record.user == UserInfo("system:serviceaccount:shop:bot", groups=groups)

    @pytest.mark.parametrize(("also", "status"), [(", v4.channel.k8s.io", 200), ("", 401)])
    def test_a_browser_sends_its_token_beside_the_protocol_it_wants(
        self, cluster: Cluster, ca: trustme.CA, also: str, status: int
    ) -> None:
        token = urlsafe_b64encode(cluster.add_token("jane").encode()).decode().rstrip("=")
        headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Key", "x"),
            ("Sec-WebSocket-Protocol", f"base64url.bearer.authorization.k8s.io.{token}{also}"),
        ]
        with client(cluster, ca) as http:
            assert self.ask(cluster, http, headers)[0] == status

    def test_remote_headers_count_over_the_proxys_certificate(self, cluster: Cluster, ca: trustme.CA) -> None:
        headers = [("X-Remote-User", "jim"), ("X-Remote-Group", "a"), ("X-Remote-Group", "b"), ("X-Remote-Uid", "9")]
        with client(cluster, ca, cluster.proxy_certificate()) as http:
            status, record = self.ask(cluster, http, headers)
        assert (status, record.certificate) == (200, "front-proxy")
        assert record.user == UserInfo("jim", "9", ("a", "b", "system:authenticated"))

    def test_remote_headers_do_not_count_under_another_name(self, cluster: Cluster, ca: trustme.CA) -> None:
        with client(cluster, ca, cluster.proxy_certificate("somebody")) as http:
            assert self.ask(cluster, http, [("X-Remote-User", "jim")])[0] == 401

    def test_remote_headers_do_not_count_over_a_users_certificate(self, cluster: Cluster, ca: trustme.CA) -> None:
        with client(cluster, ca, cluster.certificate("front-proxy")) as http:
            _, record = self.ask(cluster, http, [("X-Remote-User", "jim")])
        assert record.user is not None
        assert record.user.username == "front-proxy"


class TestRecords:
    def test_a_request_is_kept_as_it_arrived(self, cluster: Cluster, ca: trustme.CA) -> None:
        head = (
            b"GET /api/v1/namespaces/default/pods?limit=5&x=%2F%zz HTTP/1.1\r\nHost: localhost\r\n"
            b"auTHorization:  bearer " + cluster.add_token("jane").encode() + b"\r\nX-Twice: 1\r\nx-twice: 2\r\n"
            b"Connection: close\r\n\r\n"
        )
        context = ssl.create_default_context()
        ca.configure_trust(context)
        with (
            socket.create_connection(("127.0.0.1", cluster.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
            connection.makefile("rb") as answer,
        ):
            connection.sendall(head)
            assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
            answer.read()
        (record,) = cluster.requests
        assert record.head == head
        assert record.target == b"/api/v1/namespaces/default/pods?limit=5&x=%2F%zz"
        assert [name for name, _ in record.headers] == [
            b"Host", b"auTHorization", b"X-Twice", b"x-twice", b"Connection"
        ]  # fmt: skip
        assert record.values("X-Twice") == ["1", "2"]

    def test_requests_over_one_connection_are_seen_to_be(self, cluster: Cluster, jane: httpx.Client) -> None:
        for _ in range(2):
            jane.get("/version")
        assert [record.connection for record in cluster.requests] == [1, 1]


class TestObjects:
    def test_a_missing_object_has_kubernetes_bytes(self, jane: httpx.Client) -> None:
        answer = jane.get("/apis/apps/v1/namespaces/default/deployments/x%3Cy%3E")
        assert answer.status_code == 404
        assert answer.content == (
            b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
            b'"message":"deployments.apps \\"x\\u003cy\\u003e\\" not found","reason":"NotFound",'
            b'"details":{"name":"x\\u003cy\\u003e","group":"apps","kind":"deployments"},"code":404}\n'
        )

    def test_a_stale_update_is_a_conflict(self, jane: httpx.Client) -> None:
        path = "/api/v1/namespaces/default/configmaps"
        first = jane.post(path, json=CONFIG_MAP).json()
        assert jane.put(f"{path}/settings", json={**first, "data": {"colour": "blue"}}).status_code == 200
        stale = jane.put(f"{path}/settings", json=first)
        assert (stale.status_code, stale.json()["reason"]) == (409, "Conflict")

    def test_nothing_is_created_in_a_namespace_that_is_not_there(self, jane: httpx.Client) -> None:
        answer = jane.post("/api/v1/namespaces/nowhere/configmaps", json=CONFIG_MAP)
        assert (answer.status_code, answer.json()["message"]) == (404, 'namespaces "nowhere" not found')

    @pytest.mark.parametrize(
        ("selector", "names"),
        [
            ("labelSelector=tier in (front, back),app", ["a", "b"]),
            ("labelSelector=tier!=front", ["b", "c"]),
            ("labelSelector=!app", ["c"]),
            ("labelSelector=tier notin (back)", ["a", "c"]),
            ("fieldSelector=metadata.name=b", ["b"]),
            ("fieldSelector=status.phase=Running,metadata.name!=b", ["a", "c"]),
        ],
    )
    def test_selectors(self, cluster: Cluster, jane: httpx.Client, selector: str, names: list[str]) -> None:
        cluster.add_pod("default", "a", labels={"app": "x", "tier": "front"})
        cluster.add_pod("default", "b", labels={"app": "y", "tier": "back"})
        cluster.add_pod("default", "c")
        items = jane.get(f"/api/v1/pods?{selector}").json()["items"]
        assert [item["metadata"]["name"] for item in items] == names

    def test_a_watch_starts_where_a_list_ended_and_bookmarks_its_end(
        self, cluster: Cluster, jane: httpx.Client
    ) -> None:
        cluster.add_pod("default", "old")
        revision = jane.get("/api/v1/pods").json()["metadata"]["resourceVersion"]
        cluster.add_pod("default", "new")
        parameters = f"watch=true&resourceVersion={revision}&allowWatchBookmarks=true"
        with jane.stream("GET", f"/api/v1/namespaces/default/pods?{parameters}") as answer:
            events = (json.loads(line) for line in answer.iter_lines())
            added = next(events)
            assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "new")
            cluster.remove("pods", "default", "new")
            assert next(events)["type"] == "DELETED"
            cluster.end_watches()
            bookmark = next(events)
            assert bookmark["type"] == "BOOKMARK"
            assert bookmark["object"]["metadata"]["resourceVersion"] == "5"
            assert list(events) == []
        assert jane.get("/version").status_code == 200

    def test_a_watch_ends_when_its_time_is_up(self, jane: httpx.Client) -> None:
        assert jane.get("/api/v1/pods?watch=1&timeoutSeconds=0").content == b""

    def test_initial_events_are_told_apart_from_later_ones(self, cluster: Cluster, jane: httpx.Client) -> None:
        cluster.add_pod("default", "web")
        query = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
        with jane.stream("GET", f"/api/v1/pods?{query}") as answer:
            events = (json.loads(line) for line in answer.iter_lines())
            assert next(events)["type"] == "ADDED"
            assert next(events)["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}

    def test_who_asks_for_a_stream_must_upgrade(self, cluster: Cluster, jane: httpx.Client) -> None:
        cluster.add_pod("default", "web")
        answer = jane.post("/api/v1/namespaces/default/pods/web/exec?command=true")
        assert (answer.status_code, answer.json()["message"]) == (400, "Upgrade request required")

    def test_a_refusal_is_told_with_its_reason(self, cluster: Cluster, jane: httpx.Client) -> None:
        def refuse(user: UserInfo, asked: Asked) -> str | None:
            return "not on Sundays" if asked.verb == "delete" else None

        cluster.refuse = refuse
        answer = jane.delete("/api/v1/namespaces/default")
        assert answer.status_code == 403
        assert answer.json()["message"] == (
            'namespaces "default" is forbidden: User "jane" cannot delete resource "namespaces" '
            'in API group "" in the namespace "default": not on Sundays'
        )
