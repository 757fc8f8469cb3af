"""RBAC manifests are read with every mistake and its place, and written so that they read back."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.policy_rules import PolicyRule
from ostiary.core.yaml import parse_all
from ostiary.model import Requirement
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.wire.rbac import (
    GROUP,
    Binding,
    LabelSelector,
    Manifests,
    Role,
    as_yaml,
    describe,
    read_manifests,
    together,
)

ROLE = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: team, labels: {tier: "1"}, annotations: {note: mine}}
rules:
- apiGroups: [""]
  resources: [pods, pods/log]
  verbs: [get, list]
  resourceNames: [web]
"""
BINDING = """\
apiVersion: rbac.authorization.k8s.io/v1beta1
kind: RoleBinding
metadata: {name: readers, namespace: team}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
- {kind: User, name: alice, apiGroup: rbac.authorization.k8s.io}
- {kind: Group, name: devs}
- {kind: ServiceAccount, name: robot}
- {kind: ServiceAccount, name: robot, namespace: other}
"""


def read(text: str, file: str | None = "policy.yaml") -> Manifests:
    return read_manifests(parse_all(text, file=file))


def messages(text: str) -> list[str]:
    return [f"{problem.place.path}: {problem.message}" for problem in read(text).problems]


def rule(**parts: Any) -> str:
    role = yaml.safe_load(ROLE)
    role["kind"] = parts.pop("kind", "Role")
    role["rules"] = [parts]
    return str(yaml.safe_dump(role))


def binding(kind: str = "RoleBinding", **parts: Any) -> str:
    found = yaml.safe_load(BINDING)
    found["kind"] = kind
    if kind == "ClusterRoleBinding":
        found["roleRef"]["kind"] = "ClusterRole"
        found["subjects"] = found["subjects"][:2]
    return str(yaml.safe_dump(found | parts))


def test_a_role_and_a_binding_are_read_whole() -> None:
    found = read(f"{ROLE}---\n{BINDING}")
    assert found.problems == ()
    (role,) = found.roles
    assert role == Role(
        "Role",
        "reader",
        "team",
        (PolicyRule(("get", "list"), ("",), ("pods", "pods/log"), ("web",)),),
        (("tier", "1"),),
    )
    assert str(role.rules[0].place) == "policy.yaml:5, rules[0]"
    assert found.bindings == (
        Binding(
            "RoleBinding",
            "readers",
            "team",
            "Role",
            "reader",
            (
                Subject("User", "alice"),
                Subject("Group", "devs"),
                # R7: without a namespace it is one of the binding's.
                Subject("ServiceAccount", "robot", "team"),
                Subject("ServiceAccount", "robot", "other"),
            ),
        ),
    )


def test_lists_of_objects_are_read_and_other_kinds_are_counted() -> None:
    found = read(
        """\
apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a: b}}
- apiVersion: rbac.authorization.k8s.io/v1
  kind: ClusterRole
  metadata: {name: one}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleList
items:
- {metadata: {name: two}, rules: null}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec: {replicas: 1, replicas: 2}
---
---
resources: [role.yaml]
"""
    )
    assert [role.name for role in found.roles] == ["one", "two"]
    assert found.ignored == 3
    assert found.problems == ()


def test_aggregation_rules_are_read_as_selectors() -> None:
    (role,) = read(
        """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sum}
aggregationRule:
  clusterRoleSelectors:
  - matchLabels: {a: "1"}
    matchExpressions:
    - {key: b, operator: NotIn, values: [x, z]}
    - {key: c, operator: Exists}
"""
    ).roles
    wanted = (Requirement("a", "In", ("1",)), Requirement("b", "NotIn", ("x", "z")), Requirement("c", "Exists"))
    assert role.aggregates == (LabelSelector(wanted),)


def test_a_selector_selects_by_labels(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Requirement, dict[str, str], bool]] = [
        (Requirement("k", "In", ("1", "2")), {"k": "2"}, True),
        (Requirement("k", "In", ("1",)), {}, False),
        (Requirement("k", "NotIn", ("1",)), {}, True),
        (Requirement("k", "NotIn", ("1",)), {"k": "1"}, False),
        (Requirement("k", "Exists"), {"k": ""}, True),
        (Requirement("k", "Exists"), {}, False),
        (Requirement("k", "DoesNotExist"), {}, True),
        (Requirement("k", "DoesNotExist"), {"k": "1"}, False),
    ]
    for requirement, labels, expected in cases:
        with subtests.test(requirement=requirement, labels=labels, expected=expected):
            assert LabelSelector((requirement,)).selects(tuple(labels.items())) is expected
            assert LabelSelector().selects(tuple(labels.items()))


def test_a_mistake_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    """R8, R12."""
    cases = [
        (rule(apiGroups=[""], resources=["pods"]), "rules[0].verbs: a rule needs at least one verb"),
        (
            rule(verbs=["get"], nonResourceURLs=["/x"]),
            "rules[0].nonResourceURLs: no path is in a namespace, so only a ClusterRole can have these",
        ),
        (
            rule(kind="ClusterRole", verbs=["get"], nonResourceURLs=["/x"], resources=["pods"]),
            "rules[0].nonResourceURLs: a rule is either for resources or for paths",
        ),
        (
            rule(verbs=["get"], resources=["pods"]),
            "rules[0].apiGroups: a rule for resources needs at least one API group",
        ),
        (
            rule(verbs=["get"], apiGroups=[""]),
            "rules[0].resources: a rule needs at least one resource, or one of nonResourceURLs",
        ),
        (
            rule(verbs=["get"], apiGroups=[""], resources=["pods"], resourceName=["x"]),
            "rules[0].resourceName: unknown field",
        ),
        (
            binding(metadata={"name": "a/b", "namespace": "team"}),
            'metadata.name: it cannot be part of a path: no "/", no "%", and neither "." nor ".."',
        ),
        (binding(metadata={"namespace": "team"}), "metadata.name: there is no name"),
        (binding(metadata={"name": "x"}), "metadata.namespace: there is no namespace"),
        (binding(metadata={"name": "x", "namespace": "A b"}), "metadata.namespace: it is not the name of a namespace"),
        (
            binding(roleRef={"kind": "Role", "name": "x", "apiGroup": "other"}),
            f"roleRef.apiGroup: roles are in the API group {GROUP}",
        ),
        (
            binding(roleRef={"kind": "Roll", "name": "x"}),
            "roleRef.kind: a RoleBinding refers to a Role or a ClusterRole",
        ),
        (
            binding("ClusterRoleBinding", roleRef={"kind": "Role", "name": "x"}),
            "roleRef.kind: a ClusterRoleBinding refers to a ClusterRole",
        ),
        (
            binding(roleRef={"kind": "Role", "name": ".."}),
            'roleRef.name: it cannot be part of a path: no "/", no "%", and neither "." nor ".."',
        ),
        (
            binding(subjects=[{"kind": "User", "name": "a", "apiGroup": "v1"}]),
            f"subjects[0].apiGroup: a User is in the API group {GROUP}",
        ),
        (
            binding(subjects=[{"kind": "ServiceAccount", "name": "a", "apiGroup": GROUP}]),
            'subjects[0].apiGroup: a ServiceAccount is in the core API group, ""',
        ),
        (
            binding(subjects=[{"kind": "ServiceAccount", "name": "A:b"}]),
            "subjects[0].name: it is not the name of a ServiceAccount",
        ),
        (
            binding("ClusterRoleBinding", subjects=[{"kind": "ServiceAccount", "name": "a"}]),
            "subjects[0].namespace: a ServiceAccount needs its namespace in a ClusterRoleBinding",
        ),
        (binding(subjects=[{"kind": "Group"}]), "subjects[0].name: there is no name"),
        (binding(subjects=[{"kind": "Robot", "name": "x"}]), "subjects[0].kind: there is no such kind of subject"),
        (f"apiVersion: {GROUP}/v2\nkind: Role\n", f"apiVersion: this version is not understood; write {GROUP}/v1"),
        (f"apiVersion: {GROUP}/v1\nkind: Rolebinding\n", f"kind: {GROUP} has no such kind"),
        (
            f"apiVersion: {GROUP}/v1\nkind: ClusterRole\nmetadata: {{name: x}}\naggregationRule: {{}}\n",
            "aggregationRule.clusterRoleSelectors: an aggregationRule needs at least one selector",
        ),
        (
            f"apiVersion: {GROUP}/v1\nkind: ClusterRole\nmetadata: {{name: x}}\naggregationRule:\n"
            "  clusterRoleSelectors: [{matchExpressions: [{key: a, operator: Near}]}]\n",
            "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].operator: there is no such operator",
        ),
        (
            f"apiVersion: {GROUP}/v1\nkind: ClusterRole\nmetadata: {{name: x}}\naggregationRule:\n"
            "  clusterRoleSelectors: [{matchExpressions: [{operator: In}]}]\n",
            "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].key: there is no key",
        ),
        ("just text", ": expected a mapping, found a string"),
    ]
    for text, expected in cases:
        with subtests.test(text=text, expected=expected):
            assert expected in messages(text)


def test_all_mistakes_are_told_and_the_rest_is_read() -> None:
    """R12."""
    found = read(f"{rule(verbs=[])}---\n{BINDING}")
    assert len(found.problems) == 3
    assert [one.name for one in found.bindings] == ["readers"]


def test_a_namespace_of_a_cluster_role_is_dropped_as_the_api_server_does() -> None:
    (role,) = read(f"apiVersion: {GROUP}/v1\nkind: ClusterRole\nmetadata: {{name: x, namespace: team}}\n").roles
    assert role.namespace == ""


def test_an_object_that_stands_twice_is_a_mistake() -> None:
    """R8: which one counts would depend on the order of the files."""
    (problem,) = together([read(ROLE, "a.yaml"), read(ROLE, "b.yaml")]).problems
    assert str(problem) == 'b.yaml:1: Role "reader/team" stands here a second time; the first is at a.yaml:1'


def test_subjects_and_bindings_are_told_name_first() -> None:
    """R2."""
    assert describe(Subject("ServiceAccount", "robot", "team")) == 'ServiceAccount "robot/team"'
    assert str(Binding("RoleBinding", "readers", "team")) == 'RoleBinding "readers/team"'
    assert str(Binding("ClusterRoleBinding", "readers")) == 'ClusterRoleBinding "readers"'


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.sampled_from(
    ["y", "012", "*", "~"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(text, min_size=1, max_size=3), text, text)
def test_what_is_written_reads_back_whatever_the_names_are(values: list[str], user: str, name: str) -> None:
    role = Role("Role", "role", "team", (PolicyRule(tuple(values), (user,), tuple(values), (name,)),))
    bound = Binding("RoleBinding", "bound", "team", "Role", "role", (Subject("User", user), Subject("Group", name)))
    found = read(f"{as_yaml(role)}---\n{as_yaml(bound)}")
    assert found == Manifests((role,), (bound,))
