"""Which rules give no more than others do."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.policy_rules import PolicyRule, atoms, covers, rules_not_covered
from tests.unit.ostiary_gateway.providers.rbac.policies import rule, urls


def test_rules_cover_others_piece_by_piece(subtests: pytest.Subtests) -> None:
    """R13."""
    cases: list[tuple[list[PolicyRule], list[PolicyRule], bool]] = [
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
    ]
    for owner, servant, expected in cases:
        with subtests.test(owner=owner, servant=servant, expected=expected):
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
