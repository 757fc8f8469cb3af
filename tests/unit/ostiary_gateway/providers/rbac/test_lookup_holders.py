"""The bindings of one holder, few or many: always those that were added and not removed."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.providers.rbac.lookup import Held, all_held, change_held, held_in
from ostiary_gateway.wire.rbac import Binding

NAMESPACES = ["", *(f"n{number}" for number in range(20))]


def binding(random: Random, number: int) -> Binding:
    namespace = random.choice(NAMESPACES)
    return Binding("RoleBinding" if namespace else "ClusterRoleBinding", f"b{number % 7:03}", namespace)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_all_and_only_those_that_were_added_are_held(seed: int) -> None:
    """It is one binding, a few, many, and few again."""
    random = Random(seed)
    expected: list[Binding] = []
    held: Held | None = None
    for number in range(40):
        most = 3 if number < 25 else 8
        removed = random.sample(expected, min(len(expected), random.randint(0, most)))
        added = [binding(random, number) for _ in range(random.randint(0, 6 if number < 25 else 1))]
        gone = set(map(id, removed))
        expected = [each for each in expected if id(each) not in gone] + added
        held = change_held(held, removed, added)
        assert (held is None) is (not expected)
        if held is not None:
            assert sorted(map(id, all_held(held))) == sorted(map(id, expected))
            for namespace in NAMESPACES:
                there = held_in(held, namespace)
                assert sorted(map(id, there)) == sorted(id(each) for each in expected if each.namespace == namespace)
                assert [each.name for each in there] == sorted(each.name for each in there)


def test_a_version_that_somebody_reads_is_never_changed() -> None:
    many = [Binding("RoleBinding", f"b{number}", f"n{number}") for number in range(50)]
    held = change_held(None, [], many)
    assert held is not None
    change_held(held, many[:10], [Binding("RoleBinding", "new", "n20")])
    assert list(all_held(held)) == many
