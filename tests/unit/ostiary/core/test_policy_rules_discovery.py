"""Which rules give more than a look at what there is."""

from __future__ import annotations

import pytest

from ostiary.core.policy_rules import DISCOVERY_PATHS, PolicyRule, gives_more_than_discovery

REVIEWS = ("authorization.k8s.io",)


@pytest.mark.parametrize(
    "rule",
    [
        PolicyRule(("get",), non_resource_urls=DISCOVERY_PATHS),
        PolicyRule(("create",), REVIEWS, ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
        PolicyRule(("*",), ("ostiary.dev",), ("*",)),
        PolicyRule((), ("",), ("pods",)),
        PolicyRule(("get",)),
    ],
)
def test_what_everybody_has_is_no_right(rule: PolicyRule) -> None:
    assert not gives_more_than_discovery(rule)


def test_anything_else_is_one(subtests: pytest.Subtests) -> None:
    cases = [
        PolicyRule(("get",), ("",), ("pods",), ("one",)),
        PolicyRule(("get",), non_resource_urls=("/api", "/metrics")),
        PolicyRule(("post",), non_resource_urls=("/api",)),
        PolicyRule(("create",), REVIEWS, ("selfsubjectaccessreviews", "subjectaccessreviews")),
        PolicyRule(("get",), ("*",), ("selfsubjectaccessreviews",)),
        PolicyRule(("use",), ("ostiary.dev", "apps"), ("deployments",)),
    ]
    for rule in cases:
        with subtests.test(rule=rule):
            assert gives_more_than_discovery(rule)
