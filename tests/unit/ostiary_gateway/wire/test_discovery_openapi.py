"""OpenAPI of others is added to that of an API server, which is never replaced."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ostiary_gateway.wire.discovery import ListedGroup, ListedVersion, merge_openapi_index, merge_openapi_v2

GROUP = "builds.example.com"
POD: dict[str, Any] = {"description": "A Pod", "x-kubernetes-group-version-kind": [{"group": "", "kind": "Pod"}]}


def test_the_index_has_documents_that_there_are() -> None:
    versions = (ListedVersion("v1", openapi_hash="AB"), ListedVersion("v2", openapi_hash=""), ListedVersion("v3"))
    own = {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=1"}}
    merged = merge_openapi_index(json.dumps({"paths": own}).encode(), [ListedGroup(GROUP, versions)])
    assert json.loads(merged)["paths"] == {
        **own,
        f"apis/{GROUP}/v1": {"serverRelativeURL": f"/openapi/v3/apis/{GROUP}/v1?hash=AB"},
        f"apis/{GROUP}/v2": {"serverRelativeURL": f"/openapi/v3/apis/{GROUP}/v2"},
    }


def test_v2_has_the_paths_and_definitions_of_the_group() -> None:
    build = {"description": "A Build", "x-kubernetes-group-version-kind": [{"group": GROUP, "kind": "Build"}]}
    other = {"paths": {f"/apis/{GROUP}/v1/builds": {}}, "definitions": {"Build": build, "Spec": {}}}
    own = {"swagger": "2.0", "paths": {"/api/v1/pods": {}}, "definitions": {"Pod": POD}}
    merged = json.loads(merge_openapi_v2(json.dumps(own).encode(), [(GROUP, json.dumps(other).encode())]))
    assert set(merged["paths"]) == {"/api/v1/pods", f"/apis/{GROUP}/v1/builds"}
    assert merged["definitions"] == {"Pod": POD, "Build": build, "Spec": {}}


def test_nothing_that_is_the_servers_is_replaced(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {"paths": {"/api/v1/pods": {"get": {}}}},
        {"paths": {f"/apis/{GROUP}.evil.example.com/v1/builds": {}}},
        {"definitions": {"Pod": {"description": "another"}}},
        # Under another name, and still the definition of pods to whoever looks for their kind.
        {"definitions": {"Mine": {"x-kubernetes-group-version-kind": [{"group": "", "kind": "Pod"}]}}},
        {"definitions": {"Mine": {"x-kubernetes-group-version-kind": {"group": ""}}}},
        {"paths": 7, "definitions": []},
    ]
    for other in cases:
        with subtests.test(other=other):
            own = {"paths": {"/api/v1/pods": {}}, "definitions": {"Pod": POD}}
            merged = merge_openapi_v2(json.dumps(own).encode(), [(GROUP, json.dumps(other).encode())])
            assert json.loads(merged) == own


def test_a_document_that_cannot_be_read_is_left_out() -> None:
    own: dict[str, Any] = {"paths": {}, "definitions": {}}
    assert json.loads(merge_openapi_v2(json.dumps(own).encode(), [(GROUP, b"[" * 100_000)])) == own


@pytest.mark.parametrize("body", [b"", b"[]", b'{"paths": 7}'])
def test_what_is_no_document_of_the_server_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the answer"):
        merge_openapi_v2(body, [])
    with pytest.raises(ValueError, match="the answer"):
        merge_openapi_index(body, [])
