"""What a scope allows, and whether one scope is within another."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.policy_rules import DISCOVERY_PATHS
from ostiary.core.scopes import Scope, parse_scope, scope_of_rules
from tests.unit.ostiary.core.scopes import asked, random_request, random_scope


def test_a_scope_allows_what_a_rule_of_rbac_would(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, tuple[str, ...], bool]] = [
        ("get,list pods -n shop", ("get", "pods", "shop", "web-1"), True),
        ("get,list pods -n shop", ("list", "pods", "shop"), True),
        ("get,list pods -n shop", ("list", "pods", "web"), False),
        ("get,list pods -n shop", ("list", "pods", ""), False),
        ("get,list pods -n shop", ("watch", "pods", "shop"), False),
        ("get,list pods -n shop", ("get", "pods/log", "shop", "web-1"), False),
        ("get,list pods -n shop", ("get", "pods/exec", "shop", "web-1"), False),
        ("get,list pods -n shop", ("get", "pods.metrics.k8s.io", "shop"), False),
        ("get,list pods -n shop", ("list", "secrets", "shop"), False),
        ("get,list pods -n shop", ("get", "/api"), False),
        ("get pods.* -n shop", ("get", "pods.metrics.k8s.io", "shop"), True),
        ("get pods/log -n shop", ("get", "pods/log", "shop"), True),
        ("get pods/log -n shop", ("get", "pods", "shop"), False),
        ("get */log -n shop", ("get", "pods/log", "shop"), True),
        ("get * -n shop", ("get", "deployments.apps/scale", "shop"), True),
        ("get *.apps -n shop", ("get", "pods", "shop"), False),
        ("get nodes -A", ("get", "nodes", ""), True),
        ("list pods -A", ("list", "pods", ""), True),
        ("list pods -A", ("list", "pods", "shop"), True),
        ("get namespaces -n shop", ("get", "namespaces", "shop", "shop"), True),
        ("get pods --name web-1 -n shop", ("get", "pods", "shop", "web-1"), True),
        ("get pods --name web-1 -n shop", ("get", "pods", "shop", "web-2"), False),
        ("* pods --name web-1 -n shop", ("list", "pods", "shop"), False),
        ("* pods --name web-1 -n shop", ("create", "pods", "shop"), False),
        ("get pods -n shop --upstream main", ("get", "pods", "shop"), True),
        ("get pods -n shop --upstream east,west", ("get", "pods", "shop"), False),
        ("get /metrics", ("get", "/metrics"), True),
        ("get /metrics", ("get", "/metrics/slis"), False),
        ("get /metrics", ("post", "/metrics"), False),
        ("get /metrics --upstream east", ("get", "/metrics"), False),
        ("discovery", ("get", "/apis/apps/v1"), True),
        ("discovery", ("get", "/metrics"), False),
        ("discovery", ("list", "pods", "shop"), False),
        ("* * -A", ("get", "/metrics"), False),
        ("get pods -n shop; get /metrics", ("get", "/metrics"), True),
    ]
    for scope, question, allowed in cases:
        with subtests.test(scope=scope, question=question, allowed=allowed):
            assert parse_scope(scope).allows(asked(*question).request) is allowed


def test_discovery_is_of_kubernetes_and_of_no_other_api(subtests: pytest.Subtests) -> None:
    """Elsewhere the same paths may serve anything: whoever may read pods in one namespace would read that too."""
    for path in DISCOVERY_PATHS:
        with subtests.test(path=path):
            request = asked("get", path.replace("*", "v1")).request
            scope = scope_of_rules(["get pods -n shop"])
            assert scope.allows(request)
            assert not scope.allows(replace(request, of_kubernetes=False))
            assert parse_scope(f"{scope}; get {path}").allows(replace(request, of_kubernetes=False))


def test_a_scope_without_rules_allows_nothing() -> None:
    assert not Scope().allows(asked("get", "pods", "shop").request)


def test_the_first_part_that_is_beyond_a_scope_is_told(subtests: pytest.Subtests) -> None:
    cases = [
        ("get,list pods -n shop", "get pods -n shop", ""),
        ("get,list pods -n shop", "get pods --name a -n shop --upstream east", ""),
        ("get,list pods -n shop,web", "get pods -n shop; list pods -n web", ""),
        ("* * -A", "get pods -n shop", ""),
        ("* * -A", "discovery", "get /api"),
        ("get,list pods -n shop", "get,watch pods -n shop", "watch pods -n shop"),
        ("get pods -n shop", "get pods -n shop,web", "get pods -n web"),
        ("get pods -n shop", "get pods -A", "get pods -A"),
        ("get pods -n shop", "get pods/log -n shop", "get pods/log -n shop"),
        ("get pods --name a -n shop", "get pods -n shop", "get pods -n shop"),
        ("get pods -n shop --upstream east", "get pods -n shop", "get pods -n shop"),
        ("get pods -n shop --upstream east", "get pods -n shop --upstream west", "get pods -n shop --upstream west"),
        ("get deployments.apps -n shop", "get deployments -n shop", "get deployments -n shop"),
        ("get pods -n shop", "get pods.* -n shop", "get pods.* -n shop"),
        ("get pods -n shop", "get * -n shop", "get * -n shop"),
        ("get /metrics", "get /metrics,/healthz", "get /healthz"),
        ("get /*", "discovery", ""),
        ("discovery", "discovery", ""),
        ("discovery --upstream east", "discovery", "get /api"),
        ("discovery", "get /api", "get /api"),
        ("discovery", "get /api --upstream east", "get /api --upstream east"),
    ]
    for own, other, beyond in cases:
        with subtests.test(own=own, other=other, beyond=beyond):
            assert parse_scope(own).first_beyond(parse_scope(other)) == beyond


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**40))
def test_a_scope_within_another_allows_nothing_that_the_other_does_not(seed: int) -> None:
    chance = Random(seed)
    own, other = random_scope(chance), random_scope(chance)
    assert not own.first_beyond(own)
    if not own.first_beyond(other):
        for _ in range(30):
            request = random_request(chance)
            assert own.allows(request) or not other.allows(request), (str(own), str(other), request)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**40))
def test_the_text_of_a_scope_is_read_as_the_same_scope(seed: int) -> None:
    scope = random_scope(Random(seed))
    assert parse_scope(str(scope)) == scope
    assert str(parse_scope(str(scope))) == str(scope)
