"""Objects without anything unusual are read as they would be field by field; everything else is left to that."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import parse, parse_all
from ostiary_gateway.wire import rbac as reading
from ostiary_gateway.wire.rbac import Manifests, read_manifests, read_regular_object

API = "rbac.authorization.k8s.io"
OBJECTS: list[dict[str, Any]] = [
    {
        "apiVersion": f"{API}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "b", "namespace": "ns", "labels": {"a": "b"}},
        "roleRef": {"apiGroup": API, "kind": "Role", "name": "r"},
        "subjects": [
            {"kind": "User", "name": "alice", "apiGroup": API},
            {"kind": "Group", "name": "devs", "namespace": "ignored"},
            {"kind": "ServiceAccount", "name": "robot"},
        ],
    },
    {
        "apiVersion": f"{API}/v1beta1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "b", "namespace": "dropped", "uid": "1"},
        "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "ns"}],
    },
    {
        "apiVersion": f"{API}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "r", "labels": {"z": "1", "a": "2"}},
        "rules": [
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]},
            {"verbs": ["get"], "nonResourceURLs": ["/healthz"]},
        ],
    },
    {
        "apiVersion": f"{API}/v1",
        "kind": "Role",
        "metadata": {"name": "r", "namespace": "ns"},
        "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    },
]
VALUES: list[Any] = [None, "", "x", "a/b", ".", "UPPER", 3, True, [], ["x"], [None], [3], {}, {"name": "x"}]
VALUES += ["User", "ServiceAccount", "ClusterRole", "Role", API, [{}], {"a": 1}]
KEYS = ["name", "namespace", "kind", "apiGroup", "labels", "rules", "verbs", "nonResourceURLs", "aggregationRule", "x"]


def change(random: Random, value: Any) -> None:
    """One thing in it, at some depth, is another, or gone, or new."""
    while True:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        below = [place for place in places if isinstance(value[place], (dict, list)) and value[place]]
        if below and random.random() < 0.7:
            value = value[random.choice(below)]
            continue
        if places and random.random() < 0.8:
            place = random.choice(places)
            if random.random() < 0.3:
                del value[place]
            else:
                value[place] = copy.deepcopy(random.choice(VALUES))
        elif isinstance(value, dict):
            value[random.choice(KEYS)] = copy.deepcopy(random.choice(VALUES))
        return


def with_places(manifests: Manifests) -> list[object]:
    places = [role.place for role in manifests.roles] + [binding.place for binding in manifests.bindings]
    places += [rule.place for role in manifests.roles for rule in role.rules]
    return [manifests, *places]


def text_of(random: Random) -> str:
    items = [copy.deepcopy(random.choice(OBJECTS)) for _ in range(random.randint(1, 3))]
    for _ in range(random.randint(0, 2)):
        change(random, random.choice(items))
    match random.choice(["documents", "list", "typed list"]):
        case "documents":
            return "\n---\n".join(json.dumps(item, indent=2) for item in items)
        case "list":
            return json.dumps({"apiVersion": "v1", "kind": "List", "items": items, "metadata": {}}, indent=1)
    return json.dumps({"apiVersion": f"{API}/v1", "kind": "RoleList", "items": items}, indent=1)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.integers(0, 2**32))
def test_what_is_read_does_not_depend_on_how_it_is_read(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    text = text_of(Random(seed))
    quickly = read_manifests(parse_all(text, file="f"))
    with monkeypatch.context() as patch:
        patch.setattr(reading, "read_regular_object", lambda node, **options: None)
        by_field = read_manifests(parse_all(text, file="f"))
    assert with_places(quickly) == with_places(by_field)


@pytest.mark.parametrize("item", OBJECTS)
def test_the_usual_objects_are_regular(item: dict[str, Any]) -> None:
    root = parse(json.dumps(item)).root
    assert read_regular_object(root, file=None) is not None
    assert read_regular_object(root, file=None) in (
        *read_manifests(parse_all(json.dumps(item))).roles,
        *read_manifests(parse_all(json.dumps(item))).bindings,
    )
