"""The rbac provider decides as a cluster's RBAC does: policies and answers of a real one."""

from __future__ import annotations

from typing import Any

from ostiary.core.config import parse_all
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary.plugins.rbac.defaults import with_defaults
from ostiary.plugins.rbac.index import Index
from ostiary.wire.rbac import PolicyRule, read_manifests
from tests.support.vectors import Vector, replay


def difference(vector: Vector) -> str | None:
    manifests = read_manifests(parse_all(vector["manifests"]))
    if manifests.problems:
        return f"refused: {manifests.problems[0]}"
    index = Index(with_defaults(manifests))
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
