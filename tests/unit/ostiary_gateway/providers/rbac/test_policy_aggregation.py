"""What roles that are made of roles have in the end."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from ostiary.core.policy_rules import PolicyRule
from ostiary.model import Requirement
from ostiary_gateway.providers.rbac.policy import aggregate_roles
from ostiary_gateway.wire.rbac import LabelSelector, Role
from tests.unit.ostiary_gateway.providers.rbac.policies import cluster_role, rule

OWN = rule("own", "x", "y")


def made_of(name: str, *selected: str, **labels: str) -> Role:
    selectors = tuple(LabelSelector((Requirement(label, "Exists"),)) for label in selected)
    return Role("ClusterRole", name, labels=tuple(labels.items()), aggregates=selectors, rules=(OWN,))


def part(name: str, label: str, *rules: PolicyRule) -> Role:
    return Role("ClusterRole", name, rules=rules, labels=((label, "true"),))


def rules_of(name: str, *roles: Role) -> tuple[PolicyRule, ...]:
    return next(role.rules for role in aggregate_roles(roles) if role.name == name)


A, B, C = (rule("get", "core", name) for name in "abc")


def test_rules_are_collected_by_selector_then_by_name_and_equal_ones_once() -> None:
    """R9: and what the role lists itself is overwritten."""
    roles = (
        made_of("sum", "y", "x"),
        part("r2", "x", B, A),
        part("r1", "x", A),
        part("r3", "y", C),
        cluster_role("r4", C),
    )
    assert rules_of("sum", *roles) == (C, A, B)


def test_roles_made_of_roles_made_of_roles_have_all_rules() -> None:
    """R9: whatever their order."""
    roles = [made_of("top", "mid"), made_of("middle", "low", mid="1"), part("bottom", "low", A)]
    assert rules_of("top", *roles) == rules_of("top", *reversed(roles)) == (A,)


def test_roles_made_of_each_other_come_to_an_end_and_no_role_is_made_of_itself() -> None:
    """R9."""
    roles = (made_of("one", "x", x="1"), made_of("two", "x", x="1"), part("r", "x", A))
    assert rules_of("one", *roles) == rules_of("two", *roles) == (A,)


def test_a_role_of_a_namespace_is_never_part_of_another() -> None:
    """R9."""
    lonely = Role("Role", "r", "ns1", (A,), (("x", "1"),))
    assert rules_of("sum", made_of("sum", "x"), lonely) == (OWN,)


def test_a_role_whose_selectors_find_no_rules_keeps_its_own() -> None:
    """As in a cluster, where the controller writes only what it found."""
    assert rules_of("sum", made_of("sum", "x")) == (OWN,)
    assert rules_of("sum", made_of("sum", "x"), part("empty", "x")) == (OWN,)
    # It is then a part of others like any role, and what they find replaces their own.
    roles = [made_of("top", "mid"), replace(made_of("middle", "none", mid="1"), rules=(A,))]
    assert rules_of("top", *roles) == rules_of("top", *reversed(roles)) == (A,)
    assert rules_of("middle", *roles) == (A,)


def test_own_rules_that_are_replaced_reach_nobody() -> None:
    """Whatever the order: a role that selects this one has what it has in the end."""
    roles = [
        made_of("one", "x", "y", x="1"),
        replace(made_of("two", "x", "y", x="1"), rules=(C,)),
        part("r", "y", A),
    ]
    for order in permutations(roles):
        assert rules_of("one", *order) == rules_of("two", *order) == (A,)


def test_roles_that_select_only_each_other_have_no_rules() -> None:
    roles = (made_of("one", "x", x="1"), made_of("two", "x", x="1"))
    assert rules_of("one", *roles) == rules_of("two", *roles) == ()
