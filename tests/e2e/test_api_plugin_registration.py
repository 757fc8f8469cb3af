"""API plugins that register at a running gateway: by API and by command, on all workers, and after a restart."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
import trustme

from tests.support.api_plugin import ALL_OF_BUILDS, GROUP, PluginFiles, PluginProcess, api_plugin
from tests.support.cluster import Cluster
from tests.support.every_worker import answers_of_all
from tests.support.gateway import ServedGateway, Site, role
from tests.support.waiting import until

API = "/apis/ostiary.dev/v1/apiplugins"
NAME = f"cluster.{GROUP}"
BUILDS = f"/apis/{GROUP}/v1/namespaces/team/builds"
OPERATOR = {"apiGroups": ["ostiary.dev"], "resources": ["apiplugins"], "verbs": ["*"]}
# More than enough requests on new connections for each of two workers to have answered some.
ENOUGH = 12


@dataclass
class Scene:
    gateway: ServedGateway
    plugin: PluginProcess
    files: PluginFiles
    cluster: Cluster

    def spec(self, **more: Any) -> dict[str, Any]:
        authority = (self.files.site.folder / "builds-ca.pem").read_text()
        spec = {"upstream": "cluster", "group": GROUP, "versions": ["v1"], "server": self.plugin.url, "ca": authority}
        return {key: value for key, value in {**spec, **more}.items() if value is not None}

    def register(self, user: str = "root", **more: Any) -> httpx.Response:
        with self.gateway.http(self.gateway.login(user).token) as http:
            return http.post(API, json={"spec": self.spec(**more)})

    def remove(self) -> None:
        with self.gateway.http(self.gateway.login("root").token) as http:
            assert http.delete(f"{API}/{NAME}").status_code in (200, 404)
        self.wait_for_all(404)

    def wait_for_all(self, status: int) -> None:
        """Until every worker answers so."""
        token = self.gateway.login("alice").token
        until(lambda: answers_of_all(self.gateway, token, BUILDS) == {status})

    def ostiary(self, *arguments: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        folder = self.files.site.folder
        file = folder / f"token-{uuid4().hex}"
        file.write_text(self.gateway.login(user).token)
        options = ("--server", self.gateway.url(), "--token-file", str(file), "--ca", "ca.pem")
        return subprocess.run(
            [sys.executable, "-m", "ostiary_gateway", "api-plugins", *arguments, *options],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def running(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.users("alice", "root")
    site.policy(role("team", ALL_OF_BUILDS, User="alice"), role("", OPERATOR, User="root"))
    files = PluginFiles(site)
    with Cluster(ca) as cluster, api_plugin(files) as plugin:
        cluster.add_namespace("team")
        upstreams, listen = [site.by_request_header(cluster)], {"workers": 2}
        with site.serving(upstreams=upstreams, listen=listen, apiPlugins=files.section) as gateway:
            yield Scene(gateway, plugin, files, cluster)


@pytest.fixture
def scene(running: Scene) -> Iterator[Scene]:
    """Without any plugin, before and after."""
    yield running
    running.cluster.serve_groups()
    running.remove()


class TestRegistering:
    """S67: an API of one's own registers a resource type, and serves its paths."""

    @pytest.mark.slow
    def test_every_worker_serves_it_soon_and_also_after_a_restart(self, scene: Scene) -> None:
        assert scene.gateway.get(BUILDS, scene.gateway.login("alice").token).status_code == 404
        registered = scene.register(health="/readyz")
        assert registered.status_code == 201, registered.text
        assert registered.json()["metadata"]["name"] == NAME
        assert registered.json()["status"]["createdBy"] == "root"
        scene.wait_for_all(200)
        scene.gateway.stop()
        scene.gateway.start()
        scene.wait_for_all(200)

    @pytest.mark.slow
    def test_another_gateway_with_the_same_store_serves_it_too(self, scene: Scene) -> None:
        with ServedGateway(scene.files.site, scene.files.site.folder / "gateway.yaml", {}) as replica:
            assert scene.register().status_code == 201
            token = scene.gateway.login("alice").token
            until(lambda: replica.get(BUILDS, token).status_code == 200)
            scene.remove()
            until(lambda: replica.get(BUILDS, token).status_code == 404)

    @pytest.mark.slow
    def test_a_reload_keeps_it(self, scene: Scene) -> None:
        assert scene.register().status_code == 201
        scene.wait_for_all(200)
        reloads = scene.gateway.stderr.count("the configuration was reloaded")
        scene.gateway.signal(signal.SIGHUP)
        until(lambda: scene.gateway.stderr.count("the configuration was reloaded") >= reloads + 2)
        token = scene.gateway.login("alice").token
        assert {scene.gateway.get(BUILDS, token).status_code for _ in range(ENOUGH)} == {200}

    def test_what_is_removed_is_gone_from_every_worker_and_its_streams_end(self, scene: Scene) -> None:
        scene.register()
        scene.wait_for_all(200)
        token = scene.gateway.login("alice").token
        with scene.gateway.http(token) as http, http.stream("GET", f"{BUILDS}?watch=1") as watch:
            assert watch.status_code == 200
            scene.remove()
            with pytest.raises(httpx.TransportError):
                watch.read()

    def test_only_whom_the_policy_lets(self, scene: Scene) -> None:
        assert scene.register("alice").status_code == 403
        assert scene.gateway.get(API, scene.gateway.login("alice").token).status_code == 403

    def test_what_cannot_be_is_refused_with_its_reason(self, running: Scene, subtests: pytest.Subtests) -> None:
        cases: list[tuple[int, str, dict[str, Any]]] = [
            (422, "reserved", {"group": "apps.k8s.io"}),
            (422, "reserved", {"group": "ostiary.dev"}),
            (422, "reserved", {"group": "more.ostiary.dev"}),
            (422, "domain of its own", {"group": "apps"}),
            (422, "domain of its own", {"group": "Builds.Example.com"}),
            (422, "domain of its own", {"group": "builds.example.com/v1"}),
            (422, "unknown upstream", {"upstream": "elsewhere"}),
            (422, "version", {"versions": ["../v1"]}),
            (422, "version", {"versions": []}),
            (422, "https", {"server": "http://127.0.0.1:1"}),
            (422, "path", {"server": "https://127.0.0.1:1/apis"}),
            (422, "public certificate", {"ca": None}),
            (422, "no certificate", {"ca": "nothing"}),
            (422, "private key", {"ca": "-----BEGIN PRIVATE KEY-----\n"}),
            (422, "SHA-256", {"pins": ["beef"]}),
            (422, "plain path", {"health": "/../secret"}),
            (400, "unknown field", {"secret": "x"}),
        ]
        for status, cause, spec in cases:
            with subtests.test(status=status, cause=cause, spec=spec):
                refused = running.register(**spec)
                assert refused.status_code == status, refused.text
                assert cause in refused.json()["message"]

    def test_a_group_belongs_to_one(self, scene: Scene) -> None:
        assert scene.register().status_code == 201
        again = scene.register(server="https://127.0.0.1:1")
        assert again.status_code == 409
        assert again.json()["reason"] == "Conflict"

    def test_a_group_of_the_cluster_is_taken(self, scene: Scene) -> None:
        scene.cluster.serve_groups(GROUP)
        refused = scene.register()
        assert refused.status_code == 409
        assert "serves the group" in refused.json()["message"]


class TestTheCommand:
    def test_it_registers_lists_and_removes(self, scene: Scene) -> None:
        options = ("--upstream", "cluster", "--versions", "v1", "--url", scene.plugin.url)
        registered = scene.ostiary("register", GROUP, *options, "--plugin-ca", "builds-ca.pem", "--health", "/readyz")
        assert (registered.stdout, registered.returncode) == (f"API plugin {NAME} registered\n", 0), registered.stderr
        scene.wait_for_all(200)
        listed = scene.ostiary("list", "--output", "json")
        (item,) = json.loads(listed.stdout)["items"]
        assert (item["metadata"]["name"], item["status"]["available"]) == (NAME, True)
        assert scene.ostiary("list").stdout.splitlines()[1].split()[:4] == [NAME, "v1", scene.plugin.url, "yes"]
        assert scene.ostiary("remove", NAME).stdout == f"API plugin {NAME} removed\n"
        assert "there is no API plugin" in scene.ostiary("remove", NAME).stderr

    def test_a_private_key_is_not_sent(self, running: Scene) -> None:
        options = ("--upstream", "cluster", "--versions", "v1", "--url", running.plugin.url)
        refused = running.ostiary("register", GROUP, *options, "--plugin-ca", "builds.key")
        assert "private key" in refused.stderr
        assert refused.returncode == 2
