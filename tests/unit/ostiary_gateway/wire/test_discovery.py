"""What a plugin says of its resources is read with suspicion."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.wire.discovery import (
    MOST_RESOURCES,
    ListedResource,
    decode_openapi_hashes,
    decode_resources,
    resource_list_json,
)

GROUP_VERSION = "builds.example.com/v1"
BUILDS: dict[str, Any] = {
    "name": "builds",
    "singularName": "build",
    "namespaced": True,
    "kind": "Build",
    "verbs": ["get", "list"],
    "shortNames": ["bld"],
    "categories": ["ci"],
}


def document(*resources: object, **more: object) -> bytes:
    fields = {"kind": "APIResourceList", "groupVersion": GROUP_VERSION, "resources": list(resources), **more}
    return json.dumps(fields).encode()


def test_a_resource_and_its_subresource_are_read() -> None:
    status = {"name": "builds/status", "singularName": "", "namespaced": True, "kind": "Build", "verbs": ["get"]}
    builds, part = decode_resources(document(BUILDS, status), GROUP_VERSION)
    assert builds == ListedResource(
        "builds", "Build", True, ("get", "list"), singular="build", short_names=("bld",), categories=("ci",)
    )
    assert (part.name, part.subresource, part.verbs) == ("builds", "status", ("get",))


def test_what_is_read_is_written_the_same_and_unknown_fields_are_not() -> None:
    read = decode_resources(document({**BUILDS, "storageVersionHash": "x"}), GROUP_VERSION)
    assert resource_list_json(GROUP_VERSION, read)["resources"] == [BUILDS]


def test_what_is_no_resource_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, object]] = [
        {"name": "../secrets"},
        {"name": "builds/"},
        {"name": "a/b/../c"},
        {"name": "Builds"},
        {"name": ""},
        {"name": None},
        {"kind": "build"},
        {"kind": "Build\r\nX"},
        {"namespaced": "yes"},
        {"verbs": "get"},
        {"verbs": ["get", 7]},
        {"verbs": ["g\x1b[31met"]},
        {"shortNames": ["x"] * 1000},
        {"categories": ["a b"]},
        {"singularName": "a/b"},
        {"group": "a/b"},
        {"version": "v1/x"},
    ]
    for change in cases:
        with subtests.test(change=change), pytest.raises(ValueError, match="a resource"):
            decode_resources(document({**BUILDS, **change}), GROUP_VERSION)


def test_what_is_no_list_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        ("nothing", b""),
        ("nested", b"[" * 100_000),
        ("null", b"null"),
        ("bytes", b"\xff"),
        ("another group", document(BUILDS, groupVersion="apps/v1")),
        ("no list", document(BUILDS, resources={})),
        ("too many", document(*[BUILDS] * (MOST_RESOURCES + 1))),
        ("no object", document("builds")),
    ]
    for case, body in cases:
        with subtests.test(case), pytest.raises(ValueError, match=r"."):
            decode_resources(body, GROUP_VERSION)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*BUILDS, "group", "version"]) | st.text(), inner),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4))
def test_any_document_is_read_or_refused_and_what_is_read_can_be_read_again(resources: list[object]) -> None:
    try:
        read = decode_resources(document(*resources), GROUP_VERSION)
    except ValueError:
        return
    again = json.dumps(resource_list_json(GROUP_VERSION, read)).encode()
    assert decode_resources(again, GROUP_VERSION) == read


class TestOpenapiHashes:
    def read(self, paths: object) -> dict[str, str]:
        return dict(decode_openapi_hashes(json.dumps({"paths": paths}).encode(), "builds.example.com"))

    def test_only_those_of_the_group_count(self) -> None:
        url = "/openapi/v3/apis/builds.example.com/v1?hash=AB12"
        paths = {"apis/builds.example.com/v1": {"serverRelativeURL": url}, "api/v1": {"serverRelativeURL": url}}
        assert self.read(paths) == {"v1": "AB12"}

    def test_a_url_of_the_plugin_is_never_passed_on(self, subtests: pytest.Subtests) -> None:
        for url in ["https://evil.example.com/", "/x?hash=%0d%0a", "/x?hash=a b", "", 7, None]:
            with subtests.test(url=url):
                assert self.read({"apis/builds.example.com/v1": {"serverRelativeURL": url}}) == {"v1": ""}

    @given(JSON)
    def test_any_index_is_read_or_refused(self, value: object) -> None:
        try:
            hashes = self.read(value)
        except ValueError:
            return
        assert all(not text or text.isalnum() for text in hashes.values())
