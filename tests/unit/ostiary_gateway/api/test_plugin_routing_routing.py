"""Which requests go to an API plugin: exactly those that the policy sees in its group."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.api.plugin_routing import GroupRoutes, Merging
from ostiary_gateway.config.api_plugins import ApiPluginSettings, DeclaredApiPlugin
from ostiary_gateway.config.listen import ClientTls
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.proxy.api_plugin_registry import ApiPlugins
from ostiary_gateway.proxy.context import GroupRoute
from ostiary_gateway.proxy.target import AmbiguousRequest, split_target
from ostiary_gateway.proxy.upstream_client import UpstreamClient
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.request_info import request_info
from tests.unit.ostiary_gateway.proxy.gateways import configured, kubernetes

GROUP = "builds.example.com"


class World:
    """A cluster with one plugin, which is well."""

    def __init__(self, folder: Path) -> None:
        loop, clock = asyncio.new_event_loop(), FakeClock()
        config = configured(folder, "http://127.0.0.1:1", upstreams=kubernetes("http://127.0.0.1:1"))
        self.cluster = Upstream(config.upstreams[0], loop, clock)
        # The files are read when a connection is made, and none is.
        declared = DeclaredApiPlugin(
            group=GROUP, versions=("v1",), upstream="k", server="https://127.0.0.1:2", tls=ClientTls()
        )
        upstreams = {"k": self.cluster}
        self.plugins = ApiPlugins(ApiPluginSettings(declared=(declared,)), upstreams, None, loop=loop, clock=clock)
        self.watched = self.plugins.all()[0]
        self.watched.trouble = ""
        self.routes = GroupRoutes(self.plugins, Merging(self.plugins, UpstreamClient(upstreams)))

    def find(self, path: str, method: str = "GET") -> GroupRoute | None:
        return self.routes.find(self.cluster, method, path)

    def goes_to_plugin(self, path: str, method: str = "GET") -> bool:
        route = self.find(path, method)
        return route is not None and route.upstream is self.watched.upstream


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("routes"))


@pytest.mark.parametrize(
    "path",
    [
        f"/apis/{GROUP}/v1/builds",
        f"/apis/{GROUP}/v1/namespaces/team/builds/one/status",
        f"/apis/{GROUP}/v1/watch/builds",
        f"/openapi/v3/apis/{GROUP}/v1",
    ],
)
def test_paths_of_the_group_go_to_the_plugin(world: World, path: str) -> None:
    assert world.goes_to_plugin(path)
    assert world.goes_to_plugin(path, "DELETE")


def test_all_others_stay_with_the_cluster(world: World, subtests: pytest.Subtests) -> None:
    cases = [
        "/",
        "/api",
        "/api/v1/pods",
        f"/api/{GROUP}/v1/builds",
        "/apis/apps/v1/deployments",
        f"/apis/x.{GROUP}/v1/builds",
        f"/apis/{GROUP}.x/v1/builds",
        f"/apis/apps/{GROUP}/v1/builds",
        f"/{GROUP}/v1/builds",
        f"/openapi/v3/{GROUP}/v1",
        f"/openapi/v2/apis/{GROUP}/v1",
    ]
    for path in cases:
        with subtests.test(path=path):
            assert world.find(path) is None


def test_documents_are_answered_here(world: World, subtests: pytest.Subtests) -> None:
    for path in ["/apis", "/apis/", "/openapi/v2", "/openapi/v3", f"/apis/{GROUP}", f"/apis/{GROUP}/v1"]:
        with subtests.test(path=path):
            route = world.find(path)
            assert route is not None
            assert route.upstream is None
            assert route.handler is not None


@pytest.mark.parametrize(
    "path", [f"/apis/{GROUP}/v2/builds", f"/openapi/v3/apis/{GROUP}/v2", f"/openapi/v3/apis/{GROUP}"]
)
def test_what_is_not_registered_goes_nowhere(world: World, path: str) -> None:
    route = world.find(path)
    assert route is not None
    assert route.upstream is None


def test_a_plugin_that_is_not_well_is_not_asked(world: World) -> None:
    world.watched.trouble = "it does not answer"
    try:
        assert not world.goes_to_plugin(f"/apis/{GROUP}/v1/builds")
        assert world.find(f"/apis/{GROUP}/v1/builds") is not None, "and its paths are not the cluster's"
    finally:
        world.watched.trouble = ""


SEGMENTS = st.sampled_from(
    [
        *("apis", "api", GROUP, GROUP.upper(), "apps", "v1", "v2", "watch", "proxy", "namespaces", "team", "builds"),
        *("..", ".", "", "%2e%2e", "%62uilds.example.com", f"{GROUP};", f"{GROUP}%2Fv1", "openapi", "v3"),
    ]
)


@given(st.lists(SEGMENTS, max_size=8), st.sampled_from(["GET", "POST", "DELETE", "HEAD", "PATCH"]))
def test_what_reaches_the_plugin_was_decided_in_its_group(world: World, segments: list[Any], method: str) -> None:
    """S68: no unauthorized call gets there: the route and the decision read the same group."""
    try:
        path, query = split_target(("/" + "/".join(segments)).encode())
        info = request_info(RequestLine(method, path, query))
    except (AmbiguousRequest, ValueError):
        return
    if world.goes_to_plugin(path, method):
        is_document = info.path.startswith(f"/openapi/v3/apis/{GROUP}/v1")
        assert is_document or (info.is_resource and info.api_group == GROUP), path
    elif info.is_resource and info.api_group == GROUP:
        route = world.find(path, method)
        assert route is not None, "the cluster never gets what was decided in the plugin's group"
