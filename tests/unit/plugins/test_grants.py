"""What providers tell of their whole policy, and what they find wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.interfaces.authorization import Grant, NonResourceRule, ResourceRule, Subject
from ostiary.plugins.abac.authorization import AbacAuthorization
from ostiary.plugins.abac.reading import API_VERSION
from ostiary.plugins.allow_all.authorization import AllowAllAuthorization
from tests.unit.plugins.rbac.policies import bind, cluster_role, rbac, role, rule, urls


def test_rbac_tells_each_rule_of_each_subject_where_it_holds() -> None:
    provider = rbac(
        cluster_role("r", rule("get", "core", "pods", "a"), urls("get", "/x")),
        role("r", "team", rule("list", "apps", "deployments")),
        bind("r", "User:alice"),
        bind("r", "Group:dev", namespace="team"),
        bind("r", "User:bob", namespace="team", role_kind="Role"),
        bind("gone", "User:eve"),
    )
    told = [(one.subject.name, one.rule, one.namespace, one.subject.via) for one in provider.grants()]
    pods = ResourceRule(("get",), ("",), ("pods",), ("a",))
    cluster, local = 'ClusterRoleBinding "bind-r" of ClusterRole "r"', 'RoleBinding "bind-r/team" of'
    assert told == [
        ("alice", pods, "", cluster),
        ("alice", NonResourceRule(("get",), ("/x",)), "", cluster),
        # A RoleBinding gives no paths.
        ("dev", pods, "team", f'{local} ClusterRole "r"'),
        ("bob", ResourceRule(("list",), ("apps",), ("deployments",)), "team", f'{local} Role "r"'),
    ]


def test_allow_all_tells_that_everybody_has_everything() -> None:
    told = {(one.subject.name, type(one.rule)) for one in AllowAllAuthorization().grants()}
    assert len(told) == 4


def abac(tmp_path: Path, *specs: dict[str, Any] | str) -> Path:
    path = tmp_path / "p.jsonl"
    lines = [
        one if isinstance(one, str) else json.dumps({"apiVersion": API_VERSION, "kind": "Policy", "spec": one})
        for one in specs
    ]
    path.write_text("\n".join(lines))
    return path


def test_abac_tells_each_line_that_somebody_has_by_name(tmp_path: Path) -> None:
    pods = {"resource": "pods", "namespace": "team", "apiGroup": ""}
    path = abac(tmp_path, {"user": "alice", "readonly": True, **pods}, {"group": "dev", "nonResourcePath": "/x"},
                {"user": "bob", "group": "dev", **pods}, pods)  # fmt: skip
    reading = ResourceRule(("get", "list", "watch"), ("",), ("pods",))
    assert AbacAuthorization([path]).grants() == (
        Grant(Subject("User", "alice", via=f"{path}:1"), reading, "team", subresources=True),
        Grant(Subject("Group", "dev", via=f"{path}:2"), NonResourceRule(("*",), ("/x",))),
    )


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([{"user": "alice", "resource": "pods"}], []),
        (["{"], [("invalid", "error", 1)]),
        ([{"user": "a", "resource": "pods"}, {"user": "a", "resource": "pods"}], [("duplicate-line", "warning", 2)]),
        ([{"resource": "pods"}], [("no-subject", "error", 1)]),
        ([{"user": "a"}], [("no-object", "error", 1)]),
        ([{"user": "*", "resource": "*"}], [("wide-grant", "warning", 1)]),
        ([{"user": "*", "resource": "*", "readonly": True}], []),
        ([{"group": "system:unauthenticated", "nonResourcePath": "*"}], [("wide-grant", "error", 1)]),
    ],
)
def test_abac_finds_what_allows_nothing_or_too_much(
    tmp_path: Path, specs: list[Any], expected: list[tuple[str, str, int]]
) -> None:
    found = AbacAuthorization.lint([abac(tmp_path, *specs)])
    assert [(one.rule, one.level.value, one.problem.place.line) for one in found] == expected


def test_abac_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    (finding,) = AbacAuthorization.lint([tmp_path / "gone.jsonl"])
    assert finding.rule == "invalid"
