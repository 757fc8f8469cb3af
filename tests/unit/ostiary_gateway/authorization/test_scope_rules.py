"""The rules of a policy and a delegation together, as rules."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.policy_rules import PolicyRule, RuleTable, resource_keys
from ostiary.core.scopes import Delegation, narrow, parse_scope
from ostiary.model import Attributes, RequestInfo
from ostiary_gateway.authorization.scope_rules import MOST_RULES, rules_within
from ostiary_gateway.interfaces.authorization import NonResourceRule, ResourceRule, Rules
from tests.unit.ostiary.core.scopes import OWNER, random_request, random_scope

EVERYTHING = Rules((ResourceRule(("*",), ("*",), ("*",)),), (NonResourceRule(("*",), ("*",)),))


def within(rules: Rules, scope: str, namespace: str = "shop") -> Rules:
    return rules_within(rules, narrow(None, parse_scope(scope)), namespace=namespace, upstream="main")


def test_of_everything_the_scope_is_left() -> None:
    rules = within(EVERYTHING, "get,list pods,deployments.apps -n shop; get /healthz")
    assert set(rules.resource_rules) == {
        ResourceRule(("get", "list"), ("",), ("pods",)),
        ResourceRule(("get", "list"), ("apps",), ("deployments",)),
    }
    assert rules.non_resource_rules == (NonResourceRule(("get",), ("/healthz",)),)
    assert within(EVERYTHING, "get pods -n shop", namespace="web") == Rules()


def test_names_are_those_of_both() -> None:
    policy = Rules((ResourceRule(("get",), ("",), ("pods",), ("a", "b")),))
    assert within(policy, "get pods --name b,c -n shop").resource_rules[0].resource_names == ("b",)
    assert within(policy, "get pods --name c -n shop").resource_rules == ()


def test_what_the_policy_could_not_tell_stays_told() -> None:
    rules = within(Rules(incomplete=True, error="could not ask"), "get pods -n shop")
    assert (rules.incomplete, rules.error) == (True, "could not ask")


def test_a_list_that_grows_too_long_is_cut_and_says_so() -> None:
    policy = Rules(tuple(ResourceRule(("get",), ("",), ("pods",), (f"p{n}",)) for n in range(MOST_RULES + 1)))
    rules = within(policy, "get pods -n shop")
    assert (len(rules.resource_rules), rules.incomplete) == (MOST_RULES, True)


def test_a_delegation_without_layers_leaves_nothing() -> None:
    assert rules_within(EVERYTHING, Delegation(()), namespace="shop", upstream="main") == Rules()


def allowed_by(rules: Rules, request: RequestInfo) -> bool:
    table = RuleTable(
        (rule, True)
        for rule in (
            *(PolicyRule(r.verbs, r.api_groups, r.resources, r.resource_names) for r in rules.resource_rules),
            *(PolicyRule(r.verbs, non_resource_urls=r.paths) for r in rules.non_resource_rules),
        )
    )
    if not request.is_resource:
        return table.find_url(request.verb, request.path) is not None
    keys = resource_keys(request.resource, request.subresource)
    return table.find(request.verb, request.api_group, keys, request.name) is not None


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**40))
def test_the_rules_that_are_left_allow_what_both_allow_and_nothing_else(seed: int) -> None:
    chance = Random(seed)
    policy, delegation = random_scope(chance), narrow(None, random_scope(chance))
    rules = [each for rule in policy.rules for each in rule.policy_rules()]
    listed = Rules(
        tuple(ResourceRule(r.verbs, r.api_groups, r.resources, r.resource_names) for r in rules if r.resources),
        tuple(NonResourceRule(r.verbs, r.non_resource_urls) for r in rules if r.non_resource_urls),
    )
    for _ in range(20):
        # Only Kubernetes has the review that lists them.
        request = replace(random_request(chance), of_kubernetes=True)
        left = rules_within(listed, delegation, namespace=request.namespace, upstream=request.upstream)
        both = allowed_by(listed, request) and delegation.allows(Attributes(OWNER, request))
        assert allowed_by(left, request) is both
