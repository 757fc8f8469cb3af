"""Groups of others are added to those of an API server, and never in their place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.wire.discovery import ListedGroup, ListedResource, ListedVersion, merge_groups

BUILDS = ListedResource("builds", "Build", True, ("get", "list"), singular="build", short_names=("bld",))
SCALE = ListedResource(
    "builds", "Scale", True, ("get",), subresource="scale", kind_group="autoscaling", kind_version="v1"
)
GROUP = ListedGroup("builds.example.com", (ListedVersion("v1", (BUILDS, SCALE)), ListedVersion("v1beta1")))
APPS: dict[str, Any] = {"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}


def groups(*names: str) -> bytes:
    return json.dumps(
        {"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": name} for name in names]}
    ).encode()


def aggregated(*names: str) -> bytes:
    items = [{"metadata": {"name": name}, "versions": []} for name in names]
    return json.dumps(
        {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}
    ).encode()


def test_a_group_is_added_at_the_end() -> None:
    merged = json.loads(merge_groups(groups("apps"), [GROUP]).body)
    assert [group["name"] for group in merged["groups"]] == ["apps", "builds.example.com"]
    versions = merged["groups"][1]["versions"]
    assert [each["groupVersion"] for each in versions] == ["builds.example.com/v1", "builds.example.com/v1beta1"]
    assert merged["groups"][1]["preferredVersion"]["version"] == "v1"


def test_aggregated_discovery_has_its_resources_and_subresources() -> None:
    merged = json.loads(merge_groups(aggregated("apps"), [GROUP]).body)
    version = merged["items"][1]["versions"][0]
    assert version["freshness"] == "Current"
    (resource,) = version["resources"]
    assert resource == {
        "resource": "builds",
        "responseKind": {"group": "builds.example.com", "version": "v1", "kind": "Build"},
        "scope": "Namespaced",
        "singularResource": "build",
        "verbs": ["get", "list"],
        "shortNames": ["bld"],
        "subresources": [
            {
                "subresource": "scale",
                "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
                "verbs": ["get"],
            }
        ],
    }


def test_one_that_is_not_well_is_stale() -> None:
    stale = ListedGroup(GROUP.name, GROUP.versions, is_fresh=False)
    merged = json.loads(merge_groups(aggregated(), [stale]).body)
    assert {each["freshness"] for each in merged["items"][0]["versions"]} == {"Stale"}


@pytest.mark.parametrize("body", [groups("apps", GROUP.name), aggregated("apps", GROUP.name)])
def test_a_group_that_the_server_has_itself_is_not_added(body: bytes) -> None:
    merged = merge_groups(body, [GROUP])
    assert merged.taken == (GROUP.name,)
    assert json.loads(merged.body) == json.loads(body)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"kind": "APIGroupList", "groups": 7}', b"[" * 100_000])
def test_what_is_no_list_of_groups_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the answer"):
        merge_groups(body, [GROUP])


@given(st.lists(st.sampled_from(["apps", "batch", GROUP.name, "other.example.com"]), unique=True), st.booleans())
def test_what_the_server_has_stays_as_it_is(names: list[str], is_aggregated: bool) -> None:
    body = aggregated(*names) if is_aggregated else groups(*names)
    key = "items" if is_aggregated else "groups"
    merged = merge_groups(body, [GROUP])
    assert json.loads(merged.body)[key][: len(names)] == json.loads(body)[key]
    assert (GROUP.name in merged.taken) == (GROUP.name in names)
