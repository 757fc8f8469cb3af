"""API plugins beside a cluster, through a real gateway: the real kubectl finds and uses their resources."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
import trustme

from tests.support.api_plugin import ALL_OF_BUILDS, GATEWAY_NAME, GROUP, PluginFiles, PluginProcess, api_plugin
from tests.support.cluster import Cluster
from tests.support.cluster.client import Kubectl
from tests.support.gateway import Login, ServedGateway, Site, role
from tests.support.http_server import Handler, HttpServer, Request, Response
from tests.support.streams import line
from tests.support.waiting import until

PEOPLE = ("alice", "bob", "root")
BUILDS = f"/apis/{GROUP}/v1/namespaces/team/builds"
API = "/apis/ostiary.dev/v1/apiplugins"
OPERATOR = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
THINGS = {"apiGroups": ["*"], "resources": ["things"], "verbs": ["*"]}
FEW = {"name": "few", "resources": [f"builds.{GROUP}"], "count": 1, "namespaces": ["small"]}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"


def resource_list(group: str) -> dict[str, Any]:
    """A list of one resource, *things*."""
    resource = {
        "name": "things",
        "singularName": "thing",
        "namespaced": True,
        "kind": "Thing",
        "verbs": ["get", "list"],
    }
    return {"kind": "APIResourceList", "groupVersion": f"{group}/v1", "resources": [resource]}


def giant(request: Request) -> Response:
    """Discovery without end."""
    return Response(200, (b" " * 65536 for _ in range(1024)))


def garbage(request: Request) -> Response:
    return Response(200, {"kind": "APIResourceList", "resources": [{"name": "../../secrets"}]})


def nested(request: Request) -> Response:
    return Response(200, b"[" * 100_000, {"Content-Type": "application/json"})


def of_another_group(request: Request) -> Response:
    return Response(200, resource_list("apps"))


def redirecting(request: Request) -> Response:
    """Well behaved, until somebody asks for a resource."""
    if request.path.count("/") <= 3:
        return Response(200, resource_list("redirecting.example.com"))
    return Response(302, headers={"Location": "https://localhost:1/steal"})


def hanging(released: threading.Event) -> Handler:
    def hang(request: Request) -> None:
        released.wait(60)

    return hang


@contextmanager
def hostile_plugin(files: PluginFiles, behave: Handler) -> Iterator[str]:
    """Its URL."""
    folder = files.site.folder
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "builds.pem", folder / "builds.key")
    context.load_verify_locations(folder / "gateway-client-ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with HttpServer(behave, tls=context, hostname="127.0.0.1").running() as server:
        yield server.url


def build(name: str) -> dict[str, Any]:
    spec = {"image": "shop:1", "source": "git"}
    return {"apiVersion": f"{GROUP}/v1", "kind": "Build", "metadata": {"name": name}, "spec": spec}


def new_name() -> str:
    return f"build-{uuid4().hex[:8]}"


@dataclass
class Scene:
    gateway: ServedGateway
    cluster: Cluster
    plugin: PluginProcess
    files: PluginFiles
    users: dict[str, Login]

    def kubectl(self, user: str = "alice") -> Kubectl:
        """With a discovery cache of its own."""
        return self.gateway.kubectl(self.gateway.login(user).token)

    def get(self, path: str, user: str = "alice", **options: Any) -> httpx.Response:
        return self.gateway.get(path, self.users[user].token, **options)

    def wait_until_served(self) -> None:
        until(lambda: self.get(f"/apis/{GROUP}/v1").status_code == 200)


@pytest.fixture(scope="module")
def scene(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A gateway before a cluster, with the plugin of the examples and with plugins that nobody should trust."""
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.users(*PEOPLE)
    account = {"User": "ostiary:serviceaccount:team:builder"}
    site.policy(
        role("team", ALL_OF_BUILDS, THINGS, "pods", User="alice"),
        role("small", ALL_OF_BUILDS, User="alice"),
        role("team", "pods", User="bob"),
        role("team", {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}, **account),
        role("", OPERATOR, User="root"),
    )
    files = PluginFiles(site)
    files.write("another-ca.pem", trustme.CA().cert_pem.bytes())
    released = threading.Event()
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(ca))
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        plugin = stack.enter_context(api_plugin(files))
        section = files.declared(plugin.url)

        def declare(name: str, url: str, **more: Any) -> None:
            group = f"{name}.example.com"
            section["declared"] += files.declared(url, group=group, health=None, **more)["declared"]

        for name, behave in {
            "giant": giant,
            "garbage": garbage,
            "nested": nested,
            "another-group": of_another_group,
            "redirecting": redirecting,
            "hanging": hanging(released),
        }.items():
            declare(name, stack.enter_context(hostile_plugin(files, behave)))
        declare("another-authority", plugin.url, tls={"ca": "another-ca.pem"})
        declare("another-certificate", plugin.url, tls={"ca": "builds-ca.pem", "pins": ["00" * 32]})
        declared = [{"namespace": "team", "name": "builder"}]
        section["declared"] += files.declared(plugin.url, upstream="east")["declared"]
        east = {**site.impersonating(cluster), "name": "east", "prefix": "/clusters/east", "stripPrefix": True}
        gateway = stack.enter_context(
            site.serving(
                upstreams=[site.impersonating(cluster), east],
                apiPlugins=section,
                serviceAccounts={"declared": declared},
                admission=[{"name": "objects", "type": "object_quota", "limits": [FEW]}],
            )
        )
        stack.callback(released.set)
        users = {name: gateway.login(name) for name in PEOPLE}
        scene = Scene(gateway, cluster, plugin, files, users)
        scene.wait_until_served()
        yield scene


@pytest.mark.needs("kubectl")
class TestKubectl:
    """S67: an API of one's own is a process of its own, and its resources are used like those of the cluster."""

    def test_a_resource_is_created_read_and_deleted(self, scene: Scene) -> None:
        kubectl, name = scene.kubectl(), new_name()
        assert kubectl.output("create", "-f", "-", stdin=json.dumps(build(name))) == f"build.{GROUP}/{name} created\n"
        assert f"{name} " in kubectl.output("get", "builds")
        both = kubectl.output("get", "bld,pods", "-o", "name").split()
        assert {f"build.{GROUP}/{name}", "pod/web"} <= set(both)
        assert "image: shop:1" in kubectl.output("get", "build", name, "-o", "yaml")
        assert "Requested By:  alice" in kubectl.output("describe", "build", name)
        kubectl.output("delete", "build", name)
        assert "NotFound" in kubectl("get", "build", name).stderr

    @pytest.mark.parametrize("aggregated", [False, True], ids=["discovery", "aggregated discovery"])
    def test_it_stands_among_the_resources_of_the_cluster(self, scene: Scene, aggregated: bool) -> None:
        scene.cluster.aggregate_discovery(aggregated)
        listed = scene.kubectl("bob")("api-resources")
        rows = {row.split()[0]: row.split() for row in listed.stdout.splitlines()}
        assert rows["builds"] == ["builds", "bld", f"{GROUP}/v1", "true", "Build"]
        assert rows["pods"] == ["pods", "po", "v1", "true", "Pod"]
        assert rows["deployments"][2] == "apps/v1"
        # What is not well is missing, and nothing else is.
        assert "hanging.example.com" not in listed.stdout

    def test_a_category_names_it(self, scene: Scene) -> None:
        kubectl, name = scene.kubectl(), new_name()
        kubectl.output("create", "-f", "-", stdin=json.dumps(build(name)))
        assert name in kubectl.output("get", "ci")

    def test_it_is_explained(self, scene: Scene) -> None:
        explained = scene.kubectl().output("explain", "builds.spec")
        assert "What is built." in explained
        assert "The image that is made." in explained

    def test_it_is_applied(self, scene: Scene) -> None:
        kubectl, name = scene.kubectl(), new_name()
        assert "created" in kubectl.output("apply", "-f", "-", stdin=json.dumps(build(name)))
        changed = build(name)
        changed["spec"]["image"] = "shop:2"
        assert "configured" in kubectl.output("apply", "-f", "-", stdin=json.dumps(changed))

    def test_a_watch_shows_changes_as_they_happen(self, scene: Scene) -> None:
        name = new_name()
        with scene.kubectl().running("get", "builds", "--watch-only", "-o", "name") as run:
            creator = scene.kubectl()
            until(lambda: scene.gateway.metric("ostiary_gateway_open_streams") >= 1)
            creator.output("create", "-f", "-", stdin=json.dumps(build(name)))
            assert line(run) == f"build.{GROUP}/{name}\n"

    def test_who_may_not_is_told_so_by_the_gateway(self, scene: Scene) -> None:
        refused = scene.kubectl("bob")("get", "builds")
        assert f'User "bob" cannot list resource "builds" in API group "{GROUP}"' in refused.stderr


class TestRequests:
    """S68: the gateway authorizes for the plugin, and no unauthorized call gets there."""

    def test_the_plugin_is_told_the_user_and_not_what_a_client_claims(self, scene: Scene) -> None:
        claims = [("X-Remote-User", "root"), ("X-Remote-Group", "system:masters"), ("x_remote_user", "root")]
        with scene.gateway.http(scene.users["alice"].token, headers=claims) as http:
            created = http.post(BUILDS, json=build(new_name()))
        assert created.status_code == 201
        assert created.json()["status"]["requestedBy"] == "alice"

    def test_a_quota_counts_what_the_plugin_has(self, scene: Scene) -> None:
        path = f"/apis/{GROUP}/v1/namespaces/small/builds"
        with scene.gateway.http(scene.users["alice"].token) as http:
            assert http.post(path, json=build("first")).status_code == 201
            refused = http.post(path, json=build("second"))
            assert (refused.status_code, "exceeded quota: few" in refused.text) == (403, True)
            http.delete(f"{path}/first")

    def test_it_stands_beside_a_cluster_that_has_a_prefix(self, scene: Scene) -> None:
        until(lambda: scene.get(f"/clusters/east/apis/{GROUP}/v1").status_code == 200)
        assert scene.get(f"/clusters/east{BUILDS}").json()["kind"] == "BuildList"
        names = [group["name"] for group in scene.get("/clusters/east/apis").json()["groups"]]
        assert names[0] == "apps"
        assert names[-1] == GROUP
        # A plugin beside one cluster is nobody's beside another.
        assert scene.get("/clusters/east/apis/redirecting.example.com/v1").status_code == 404

    def test_without_a_token_nobody_gets_there(self, scene: Scene) -> None:
        assert scene.gateway.get(BUILDS).status_code == 401
        assert scene.gateway.get(f"/apis/{GROUP}").status_code == 401

    def test_requests_are_recorded_as_those_to_the_cluster(self, scene: Scene) -> None:
        name = new_name()
        assert scene.get(f"{BUILDS}/{name}").status_code == 404
        events = scene.gateway.site.events
        until(lambda: any(name in each["requestURI"] for each in events()))
        event = next(each for each in events() if name in each["requestURI"])
        assert event["objectRef"] == {
            "resource": "builds",
            "namespace": "team",
            "name": name,
            "apiGroup": GROUP,
            "apiVersion": "v1",
        }
        assert event["responseStatus"]["code"] == 404
        assert event["annotations"]["authorization.k8s.io/decision"] == "allow"

    def test_no_other_way_of_writing_a_path_leads_there(self, scene: Scene, subtests: pytest.Subtests) -> None:
        """bob may do everything with pods, and nothing with builds."""
        cases = [
            f"/apis/apps/v1/../../{GROUP}/v1/namespaces/team/builds",
            f"/api/v1/namespaces/team/pods/../../../../../apis/{GROUP}/v1/namespaces/team/builds",
            f"//apis/{GROUP}/v1/namespaces/team/builds",
            f"/apis//{GROUP}/v1/namespaces/team/builds",
            "/apis/%62uilds.example.com/v1/namespaces/team/builds",
            f"/apis/{GROUP}%2Fv1/namespaces/team/builds",
            f"/apis/{GROUP};v=1/v1/namespaces/team/builds",
            f"/apis/{GROUP.upper()}/v1/namespaces/team/builds",
            f"/apis/{GROUP}./v1/namespaces/team/builds",
            f"/apis/{GROUP}/v2/namespaces/team/builds",
            f"/apis/{GROUP}/v1/watch/namespaces/team/builds",
            f"/apis/{GROUP}/v1/proxy/namespaces/team/builds",
            f"https://localhost/apis/{GROUP}/v1/namespaces/team/builds",
        ]
        for path in cases:
            with subtests.test(path=path):
                token = scene.users["bob"].token
                headers = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
                head = f"GET {path} HTTP/1.1\r\n{headers}\r\n"
                with scene.gateway.connect() as connection:
                    connection.sendall(head.encode())
                    status_line = connection.makefile("rb").readline()
                assert status_line.split()[1] in (b"400", b"403", b"404"), status_line

    def test_a_version_that_is_not_registered_is_not_there(self, scene: Scene) -> None:
        assert scene.get(f"/apis/{GROUP}/v2/namespaces/team/builds").status_code == 404
        assert scene.get(f"/apis/{GROUP}/v2").status_code == 404

    def test_what_the_plugin_does_itself_is_authorized_like_anybodys(self, scene: Scene) -> None:
        """S67: a plugin has an account as any program has one, and no more than the policy gives it."""
        path = "/apis/ostiary.dev/v1/namespaces/team/serviceaccounts/builder/token"
        with scene.gateway.http(scene.users["root"].token) as http:
            token = http.post(path, json={}).json()["status"]["token"]
        assert scene.gateway.get("/api/v1/namespaces/team/pods", token).status_code == 200
        assert scene.gateway.get("/api/v1/namespaces/team/secrets", token).status_code == 403
        # Not even its own resources.
        assert scene.gateway.get(BUILDS, token).status_code == 403


class TestTheChannel:
    """S68: both sides verify each other: nobody else reaches the plugin, and no other server is taken for it."""

    def test_a_direct_call_without_the_gateways_certificate_fails(self, scene: Scene) -> None:
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            httpx.get(
                scene.plugin.url + BUILDS,
                verify=scene.files.client_context(),
                headers={"X-Remote-User": "alice"},
                trust_env=False,
            )

    def test_another_certificate_of_the_same_authority_is_not_the_gateway(self, scene: Scene) -> None:
        another = scene.files.gateway_authority.issue_cert("other", common_name=f"not-{GATEWAY_NAME}")
        scene.files.write_pair("another", another)
        context = scene.files.client_context(with_certificate="another")
        answer = httpx.get(
            scene.plugin.url + BUILDS, verify=context, headers={"X-Remote-User": "alice"}, trust_env=False
        )
        assert answer.status_code == 403

    @pytest.mark.parametrize("name", ["another-authority", "another-certificate"])
    def test_a_server_that_cannot_prove_itself_is_never_asked(self, scene: Scene, name: str) -> None:
        assert scene.get(f"/apis/{name}.example.com/v1/namespaces/team/things").status_code == 503
        message = _plugin(scene, name)["status"]["message"]
        assert "certificate" in message


class TestPluginsThatMisbehave:
    @pytest.mark.parametrize("name", ["giant", "garbage", "nested", "another-group", "hanging"])
    def test_one_whose_discovery_cannot_be_used_is_not_served(self, scene: Scene, name: str) -> None:
        until(lambda: "not been asked" not in _plugin(scene, name)["status"]["message"])
        assert scene.get(f"/apis/{name}.example.com/v1/namespaces/team/things").status_code == 503
        assert scene.get(f"/apis/{name}.example.com/v1").status_code == 503
        # The group is known, and all others are as they were.
        names = [group["name"] for group in scene.get("/apis").json()["groups"]]
        assert {"apps", GROUP, f"{name}.example.com"} <= set(names)

    def test_a_redirect_reaches_no_client(self, scene: Scene) -> None:
        """kubectl would follow it, and present its token there."""
        until(lambda: scene.get("/apis/redirecting.example.com/v1").status_code == 200)
        answer = scene.get("/apis/redirecting.example.com/v1/namespaces/team/things")
        assert answer.status_code == 502
        assert "location" not in answer.headers

    @pytest.mark.slow
    def test_the_online_check_of_a_configuration_tells_which_are_well(self, scene: Scene) -> None:
        command = [sys.executable, "-m", "ostiary_gateway", "serve", "--check", "--online", "--config", "gateway.yaml"]
        folder = scene.gateway.site.folder
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        shown = done.stdout + done.stderr
        assert f'API plugin "cluster.{GROUP}": OK: {scene.plugin.url} answered with status 200' in shown
        (refused,) = (row for row in shown.splitlines() if '"cluster.another-authority.example.com"' in row)
        assert "certificate" in refused
        assert done.returncode == 1

    def test_the_gateway_is_ready_all_the_same(self, scene: Scene) -> None:
        assert scene.gateway.probe("/readyz").status_code == 200


class TestDiscovery:
    @pytest.mark.parametrize("version", ["v2", "v2beta1"])
    def test_aggregated_discovery_says_what_is_fresh(self, scene: Scene, version: str) -> None:
        scene.cluster.aggregate_discovery(True)
        answer = scene.get("/apis", headers={"Accept": AGGREGATED.format(version)})
        assert answer.headers["content-type"] == AGGREGATED.format(version)
        items = {item["metadata"]["name"]: item for item in answer.json()["items"]}
        (built,) = items[GROUP]["versions"]
        assert (built["freshness"], built["resources"][0]["resource"]) == ("Current", "builds")
        assert items["hanging.example.com"]["versions"][0]["freshness"] == "Stale"
        # The cluster's own come first: where two have one name, clients take the cluster's.
        assert next(iter(items)) == "apps"

    def test_what_has_not_changed_is_not_sent_again(self, scene: Scene) -> None:
        tag = scene.get("/apis").headers["etag"]
        again = scene.get("/apis", headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")

    def test_the_cluster_is_asked_in_the_name_of_the_user(self, scene: Scene) -> None:
        scene.get("/apis", "bob")
        asked = [each for each in scene.cluster.requests if each.path == "/apis"]
        user = asked[-1].user
        assert user is not None
        assert user.username == "bob"

    def test_what_is_wanted_in_another_form_is_passed_on_as_it_is(self, scene: Scene) -> None:
        answer = scene.get(
            "/openapi/v2", headers={"Accept": "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"}
        )
        assert answer.status_code == 404, "the stand-in has none, and its answer is the answer"

    def test_openapi_v3_has_an_entry_for_it(self, scene: Scene) -> None:
        paths = scene.get("/openapi/v3").json()["paths"]
        entry = paths[f"apis/{GROUP}/v1"]["serverRelativeURL"]
        assert entry.startswith(f"/openapi/v3/apis/{GROUP}/v1?hash=")
        assert scene.get(entry).json()["info"]["title"] == "Builds"
        assert "api/v1" in paths
        assert "apis/hanging.example.com/v1" not in paths


class TestOutages:
    @pytest.mark.slow
    def test_a_plugin_that_is_gone_is_503_and_stale_until_it_is_back(self, scene: Scene) -> None:
        scene.cluster.aggregate_discovery(True)
        scene.plugin.stop()
        try:
            until(lambda: scene.get(f"/apis/{GROUP}/v1").status_code == 503)
            assert scene.get(BUILDS).status_code == 503
            items = scene.get("/apis", headers={"Accept": AGGREGATED.format("v2")}).json()["items"]
            (built,) = (item["versions"][0] for item in items if item["metadata"]["name"] == GROUP)
            assert built["freshness"] == "Stale"
            assert scene.gateway.probe("/readyz").status_code == 200
            assert scene.get("/api/v1/namespaces/team/pods").status_code == 200
        finally:
            scene.plugin.start()
        scene.wait_until_served()
        assert scene.get(BUILDS).status_code == 200

    @pytest.mark.slow
    def test_a_group_that_the_cluster_begins_to_serve_is_no_longer_the_plugins(self, scene: Scene) -> None:
        scene.cluster.aggregate_discovery(False)
        scene.cluster.serve_groups(GROUP)
        try:
            names = [group["name"] for group in scene.get("/apis").json()["groups"]]
            assert names.count(GROUP) == 1
            until(lambda: scene.get(BUILDS).status_code == 503)
            assert "serves this group itself" in _plugin(scene, "builds")["status"]["message"]
        finally:
            scene.cluster.serve_groups()
        scene.wait_until_served()


def _plugin(scene: Scene, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = scene.get(f"{API}/cluster.{name}.example.com", "root").json()
    return answer
