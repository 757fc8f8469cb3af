"""The rbac provider decides as a cluster's RBAC does: policies and answers of a real one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ostiary.core.policy_rules import PolicyRule
from ostiary.core.yaml import parse_all
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.providers.rbac.file_follow import FollowedFiles
from ostiary_gateway.providers.rbac.index import Index
from ostiary_gateway.providers.rbac.policy import ObjectChange, RbacPolicy, key_of
from ostiary_gateway.wire.rbac import Binding, Role, read_manifests
from tests.support.vectors import Vector, replay


def difference(vector: Vector) -> str | None:
    manifests = read_manifests(parse_all(vector["manifests"]))
    if manifests.problems:
        return f"refused: {manifests.problems[0]}"
    return difference_of(RbacPolicy(manifests).index, vector)


def difference_by_changes(vector: Vector) -> str | None:
    """One object after the other, and some of them twice: the rest of the policy must follow."""
    manifests = read_manifests(parse_all(vector["manifests"]))
    policy = RbacPolicy()
    items: list[Role | Binding] = [*manifests.bindings, *manifests.roles]
    for item in (*items, *items[::2]):
        policy.apply([ObjectChange(key_of(item), None)])
        policy.apply([ObjectChange(key_of(item), item)])
    return difference_of(policy.index, vector)


def difference_in_files(vector: Vector) -> str | None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "policy.yaml"
        path.write_text(vector["manifests"])
        files = FollowedFiles([directory], defaults=True, watch=False)
    return difference_of(files.policy.index, vector)


def difference_of(index: Index, vector: Vector) -> str | None:
    for name, rules in vector.get("aggregated", {}).items():
        ours, theirs = index.roles["ClusterRole", "", name].rules, tuple(map(rule_of, rules))
        if set(ours) != set(theirs):
            return f"ClusterRole {name} has {ours}, and not {theirs}"
    wrong = [asked for asked in vector["questions"] if answer(index, asked) != asked["allowed"]]
    return f"{len(wrong)} questions, such as {wrong[0]}" if wrong else None


def rule_of(rule: dict[str, Any]) -> PolicyRule:
    def listed(name: str) -> tuple[str, ...]:
        return tuple(rule.get(name) or ())

    names, urls = listed("resourceNames"), listed("nonResourceURLs")
    return PolicyRule(listed("verbs"), listed("apiGroups"), listed("resources"), names, urls)


def answer(index: Index, asked: dict[str, Any]) -> bool:
    user = UserInfo(asked.get("user", ""), groups=(*asked.get("groups", ()), "system:authenticated"))
    if "path" in asked:
        request = RequestInfo(asked.get("verb", ""), "", asked["path"])
    else:
        request = RequestInfo(
            verb=asked.get("verb", ""),
            method="",
            path="",
            is_resource=True,
            api_group=asked.get("group", ""),
            namespace=asked.get("namespace", ""),
            resource=asked.get("resource", ""),
            subresource=asked.get("subresource", ""),
            name=asked.get("name", ""),
        )
    return index.decide(Attributes(user, request).user, request).allowed


def test_every_question_gets_the_answer_of_a_cluster() -> None:
    """Also where an aggregating ClusterRole keeps rules of its own, because its selectors find none."""
    replay("rbac", difference)


def test_a_policy_that_came_by_single_changes_answers_the_same() -> None:
    replay("rbac", difference_by_changes)


def test_a_policy_in_files_answers_the_same() -> None:
    replay("rbac", difference_in_files)
