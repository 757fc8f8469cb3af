"""What Kubernetes takes without a word, and what somebody likely did not mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary_gateway.interfaces.authorization import Level
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.providers.rbac.lint import judge, lint
from ostiary_gateway.wire.rbac import Binding, Role
from tests.unit.ostiary_gateway.providers.rbac.policies import bind, cluster_role, policy, role, rule, urls
from tests.unit.ostiary_gateway.providers.rbac.test_policy_aggregation import made_of

PODS = rule("get", "core", "pods")
WIDE = cluster_role("wide", rule("*", "core", "pods"))


def found(*items: Role | Binding) -> list[tuple[str, str]]:
    return [(finding.rule, finding.level.value) for finding in judge(policy(*items))]


def test_a_good_policy_has_no_findings() -> None:
    assert found(cluster_role("r", PODS), bind("r", "User:alice"), bind("view", "Group:devs", namespace="ns1")) == []


def test_what_is_found(subtests: pytest.Subtests) -> None:
    """R4, R5, R9, R13."""
    cases: list[tuple[tuple[Role | Binding, ...], list[tuple[str, str]]]] = [
        ((bind("gone", "User:alice"),), [("dangling-role", "error")]),
        ((cluster_role("r", PODS),), [("unused-role", "info")]),
        (
            (role("r", "ns1", PODS), bind("r", "User:a", namespace="ns2", role_kind="Role")),
            [("dangling-role", "error"), ("unused-role", "info")],
        ),
        ((cluster_role("r", PODS, PODS), bind("r", "User:a")), [("duplicate-rule", "warning")]),
        (
            (cluster_role("r", rule("get list", "core", "pods"), PODS), bind("r", "User:a")),
            [("redundant-rule", "info")],
        ),
        ((cluster_role("r", rule("get", "core", "pods/*")), bind("r", "User:a")), [("subresource-star", "error")]),
        ((cluster_role("r", rule("create", "core", "pods", "web")), bind("r", "User:a")), [("named-create", "error")]),
        (
            (cluster_role("r", rule("get create", "core", "pods", "web")), bind("r", "User:a")),
            [("named-create", "warning")],
        ),
        ((cluster_role("r", rule("create", "core", "pods/exec", "web")), bind("r", "User:a")), []),
        ((cluster_role("r", rule("list", "core", "pods", "web")), bind("r", "User:a")), [("named-list", "info")]),
        ((cluster_role("r", rule("get", "core", "pods", "*")), bind("r", "User:a")), [("name-star", "warning")]),
        ((cluster_role("r", rule("impersonate-on:associated-node:get", "core", "pods", "*")), bind("r", "User:a")), []),
        ((WIDE, bind("wide", "Group:system:authenticated")), [("wide-grant", "warning")]),
        ((WIDE, bind("wide", "Group:system:unauthenticated")), [("wide-grant", "error")]),
        ((WIDE, bind("wide", "User:system:anonymous", namespace="ns1")), [("wide-grant", "error")]),
        ((WIDE, bind("wide", "Group:devs")), []),
        ((cluster_role("r", urls("get", "*")), bind("r", "Group:system:authenticated")), [("wide-grant", "warning")]),
        ((bind("view"),), [("no-subjects", "info")]),
        ((cluster_role("r", rule("get", "core", "pod")), bind("r", "User:a")), [("singular-resource", "warning")]),
        ((cluster_role("r", rule("get", "core", "Pods/log")), bind("r", "User:a")), [("singular-resource", "warning")]),
        ((cluster_role("r", rule("get", "example.com", "pod")), bind("r", "User:a")), []),
        ((made_of("sum", "x"), bind("sum", "User:a")), [("rules-overwritten", "warning")]),
    ]
    for items, expected in cases:
        with subtests.test(items=items, expected=expected):
            assert sorted(found(*items)) == sorted(expected)


def test_a_role_that_is_part_of_another_is_used() -> None:
    """R9."""
    part = Role("ClusterRole", "part", rules=(PODS,), labels=(("x", "1"),))
    assert found(part, made_of("sum", "x"), bind("sum", "User:a")) == [("rules-overwritten", "warning")]


def test_a_policy_that_does_not_load_is_judged_all_the_same(tmp_path: Path) -> None:
    """R7, R12: with the places of all mistakes, in the order of the lines."""
    (tmp_path / "policy.yaml").write_text(
        """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: b}
roleRef: {kind: ClusterRole, name: gone}
subjects:
- {kind: ServiceAccount, name: robot}
- {kind: User, name: alice, apiGroup: v1}
"""
    )
    findings = lint([tmp_path])
    assert findings == RbacAuthorization.lint([tmp_path])
    places = [(finding.rule, finding.problem.place.line, finding.problem.place.path) for finding in findings]
    assert places == [
        ("dangling-role", 1, ""),
        ("invalid", 6, "subjects[0].namespace"),
        ("invalid", 7, "subjects[1].apiGroup"),
    ]
    assert all(finding.level is Level.ERROR for finding in findings)


def test_the_role_that_was_likely_meant_is_named() -> None:
    (finding, *_) = judge(policy(role("r", "ns1", PODS), bind("r", "User:a")))
    assert finding.problem.hint == 'there is Role "r/ns1"'
