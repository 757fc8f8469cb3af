"""Roles and bindings as an API server serves them: what is understood, and what is told of the rest."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.policy_rules import PolicyRule
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.wire.rbac import Binding, Role
from ostiary_gateway.wire.rbac_served import (
    PLURALS,
    ServedEvent,
    UnreadableAnswer,
    decode_event,
    decode_page,
    decode_status_code,
    entries_of,
)

V1 = "rbac.authorization.k8s.io/v1"
BINDING = {
    "metadata": {"name": "readers", "namespace": "dev", "resourceVersion": "7", "managedFields": [{"manager": "x"}]},
    "subjects": [
        {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "alice"},
        {"kind": "ServiceAccount", "name": "robot", "namespace": "dev"},
    ],
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
}
READERS = Binding(
    "RoleBinding",
    "readers",
    "dev",
    "ClusterRole",
    "view",
    (Subject("User", "alice"), Subject("ServiceAccount", "robot", "dev")),
)
ROLE = {
    "metadata": {"name": "view"},
    "aggregationRule": {"clusterRoleSelectors": []},
    "rules": [
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["web"]},
        {"verbs": ["get"], "nonResourceURLs": ["/healthz"]},
    ],
}
VIEW = Role(
    "ClusterRole",
    "view",
    rules=(
        PolicyRule(("get",), ("",), ("pods",), ("web",)),
        PolicyRule(("get",), non_resource_urls=("/healthz",)),
    ),
)


def page(kind: str, *items: Any, **metadata: str) -> bytes:
    metadata = {"resourceVersion": "9", **metadata}
    return json.dumps({"kind": f"{kind}List", "apiVersion": V1, "metadata": metadata, "items": items}).encode()


def event(what: str, kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": what, "object": {"kind": kind, "apiVersion": V1, **item}}).encode()


def test_a_page_has_its_objects_its_version_and_the_token_of_the_next() -> None:
    read = decode_page("RoleBinding", page("RoleBinding", BINDING, **{"continue": "more"}))
    assert (read.items, read.resource_version, read.continue_token) == ((READERS,), "9", "more")
    assert decode_page("ClusterRole", page("ClusterRole", ROLE)).items == (VIEW,)


def test_go_writes_null_for_what_is_empty() -> None:
    nothing = {"metadata": {"name": "n", "namespace": "dev"}, "rules": None}
    assert decode_page("Role", page("Role", nothing)).items == (Role("Role", "n", "dev"),)
    empty = json.dumps({"kind": "RoleList", "apiVersion": V1, "metadata": {"resourceVersion": "1"}, "items": None})
    assert decode_page("Role", empty.encode()).items == ()


def test_one_object_that_cannot_be_understood_does_not_hide_the_others(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        {**BINDING, "subjects": 7},
        {**BINDING, "metadata": {"name": "broken"}},
        {**BINDING, "metadata": {"name": "a/b", "namespace": "dev"}},
        {**BINDING, "kind": "ClusterRoleBinding"},
        {"metadata": {"name": "broken", "namespace": "dev"}},
        "readers",
        None,
    ]
    for broken in cases:
        with subtests.test(broken=broken):
            read = decode_page("RoleBinding", page("RoleBinding", broken, BINDING))
            assert read.items == (READERS,)
            assert len(read.unreadable) == 1


def test_an_event_has_what_is_now() -> None:
    assert decode_event("RoleBinding", event("MODIFIED", "RoleBinding", BINDING)) == ServedEvent(
        "MODIFIED", "dev", "readers", "7", READERS
    )
    assert decode_event("RoleBinding", event("DELETED", "RoleBinding", BINDING)).item is None
    bookmark = event("BOOKMARK", "RoleBinding", {"metadata": {"resourceVersion": "12"}})
    assert decode_event("RoleBinding", bookmark) == ServedEvent("BOOKMARK", resource_version="12")
    error = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410}}).encode()
    assert decode_event("RoleBinding", error) == ServedEvent("ERROR", code=410)


def test_a_cluster_role_with_a_namespace_is_one_of_the_cluster() -> None:
    item = {**ROLE, "metadata": {"name": "view", "namespace": "dev", "resourceVersion": "3"}}
    assert decode_event("ClusterRole", event("ADDED", "ClusterRole", item)).item == VIEW


def test_what_an_object_counts() -> None:
    assert entries_of(READERS) == 2
    assert entries_of(VIEW) == 6
    assert entries_of(Role("Role", "empty", "dev")) == 1


@given(
    data=st.binary(max_size=200) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_no_bytes_break_the_reading(data: bytes) -> None:
    for kind in PLURALS:
        with suppress(UnreadableAnswer):
            decode_page(kind, data)
        with suppress(UnreadableAnswer):
            decode_event(kind, data)
    assert decode_status_code(data) >= 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*BINDING, "name", "kind"]), inner),
    max_leaves=8,
)


@given(key=st.sampled_from(sorted(BINDING)), value=VALUES)
def test_a_field_of_any_other_shape_breaks_nothing(key: str, value: Any) -> None:
    """Either the object is understood, or it is told that it is not."""
    read = decode_page("RoleBinding", page("RoleBinding", {**BINDING, key: value}, BINDING))
    assert len(read.items) + len(read.unreadable) == 2
