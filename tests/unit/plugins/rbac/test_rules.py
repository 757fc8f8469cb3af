"""Which rules give no more than others do, and what roles that are made of roles have in the end."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import Requirement
from ostiary.plugins.rbac.aggregation import aggregate_roles
from ostiary.plugins.rbac.rules import atoms, covers, rules_not_covered
from ostiary.wire.rbac import LabelSelector, PolicyRule, Role
from tests.unit.plugins.rbac.policies import cluster_role, rule, urls


@pytest.mark.parametrize(
    ("owner", "servant", "expected"),
    [
        ([rule("get", "core", "pods")], [rule("get", "core", "pods")], True),
        ([rule("get list", "core", "pods nodes")], [rule("list", "core", "nodes")], True),
        ([rule("get", "core", "pods"), rule("list", "core", "pods")], [rule("get list", "core", "pods")], True),
        ([rule("*", "*", "*")], [rule("get", "apps", "deployments/scale", "a")], True),
        ([rule("get list create", "core", "pods")], [rule("*", "core", "pods")], False),
        ([rule("get", "core apps", "pods")], [rule("get", "*", "pods")], False),
        ([rule("get", "core", "pods")], [rule("get", "core", "*")], False),
        ([rule("get", "core", "pods", "a")], [rule("get", "core", "pods")], False),
        ([rule("get", "core", "pods", "a")], [rule("get", "core", "pods", "a b")], False),
        ([rule("get", "core", "pods")], [rule("get", "core", "pods", "a")], True),
        ([rule("get", "core", "pods")], [rule("get", "core", "pods/log")], False),
        ([rule("get", "core", "*/log")], [rule("get", "core", "pods/log")], True),
        ([rule("get", "core", "*/log")], [rule("get", "core", "log")], False),
        ([urls("get", "/a/*")], [urls("get", "/a/b /a/b/*")], True),
        ([urls("get", "/a")], [urls("get", "/a/*")], False),
        ([urls("get", "*")], [urls("post", "/a")], False),
        ([rule("*", "*", "*")], [urls("get", "/a")], False),
        ([urls("*", "*")], [rule("get", "core", "pods")], False),
        ([], [rule("get", "core", "pods")], False),
        ([], [], True),
    ],
)
def test_rules_cover_others_piece_by_piece(owner: list[PolicyRule], servant: list[PolicyRule], expected: bool) -> None:
    """R13."""
    assert covers(owner, servant) is expected


def test_what_is_not_covered_is_told_in_pieces() -> None:
    """R13."""
    missing = rules_not_covered([rule("get", "core", "pods")], [rule("get delete", "core", "pods")])
    assert missing == (rule("delete", "core", "pods"),)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**40))
def test_rules_cover_their_own_pieces_and_never_more_than_they_allow(seed: int) -> None:
    """R13."""
    chance = Random(seed)

    def some(values: str) -> str:
        return " ".join(chance.choices(values.split(), k=chance.randint(1, 3)))

    one, other = (
        rule(some("get list *"), some("core apps *"), some("pods pods/log */log *"), chance.choice(["", some("a b")]))
        for _ in range(2)
    )
    assert covers([one], atoms(one))
    assert covers([one], [other]) is all(covers([one], [piece]) for piece in atoms(other))
    assert (
        not (covers([one], [other]) and covers([other], [one]))
        or set(one.verbs) == set(other.verbs)
        or ("*" in one.verbs and "*" in other.verbs)
    )


# --- roles made of roles ---

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
