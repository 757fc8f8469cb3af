"""Which objects a selector selects, as k8s.io/apimachinery has it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.wire.selectors import SelectorError, every_label_requirement, parse_label_selector, select

Labels = dict[str, str]
KEYS, VALUES = st.sampled_from("abc"), st.sampled_from(["", "x", "y", "5", "10"])
OBJECTS = st.lists(st.dictionaries(KEYS, VALUES))


def chosen(objects: list[Labels], selector: str) -> list[Labels]:
    return select(objects, label_selector=selector, labels=lambda each: each)


# labels/selector_test.go: TestSelectorMatches and TestSetMatches, and the rows about > and <.
def test_labels(subtests: pytest.Subtests) -> None:
    cases = [
        ("", {"x": "y"}, True),
        ("x=y", {"x": "y"}, True),
        ("x=y,z=w", {"x": "y", "z": "w"}, True),
        ("x!=y,z!=w", {"x": "z", "z": "a"}, True),
        ("notin=in", {"notin": "in"}, True),
        ("x", {"x": "z"}, True),
        ("!x", {"y": "z"}, True),
        ("x>1", {"x": "2"}, True),
        ("x<1", {"x": "0"}, True),
        ("x=z", {}, False),
        ("x=y", {"x": "z"}, False),
        ("x=y,z=w", {"x": "w", "z": "w"}, False),
        ("x!=y,z!=w", {"x": "z", "z": "w"}, False),
        ("x", {"y": "z"}, False),
        ("!x", {"x": "z"}, False),
        ("x>1", {"x": "0"}, False),
        ("x<1", {"x": "2"}, False),
        ("x>1", {}, False),
        ("x>1", {"x": "many"}, False),
        ("x>1", {"x": "9" * 5000}, False),
        ("x<0", {"x": "-0009"}, True),
        ("x in (a,b)", {"x": "b"}, True),
        ("x notin (a,b)", {}, True),
        ("x notin (a,b)", {"x": "a"}, False),
        ("x=", {"x": ""}, True),
        ("x=", {}, False),
    ]
    for selector, labels, expected in cases:
        with subtests.test(selector=selector, labels=labels, expected=expected):
            assert chosen([labels], selector) == ([labels] if expected else [])


@given(OBJECTS, KEYS, st.lists(VALUES.filter(bool), min_size=1))
def test_in_and_notin_part_the_objects(objects: list[Labels], key: str, values: list[str]) -> None:
    listed = ",".join(values)
    inside, outside = chosen(objects, f"{key} in ({listed})"), chosen(objects, f"{key} notin ({listed})")
    assert [each for each in objects if each in inside] == inside
    assert len(inside) + len(outside) == len(objects)
    assert all(each.get(key) in values for each in inside)


@given(OBJECTS, KEYS)
def test_exists_and_does_not_exist_part_the_objects(objects: list[Labels], key: str) -> None:
    assert len(chosen(objects, key)) + len(chosen(objects, f"!{key}")) == len(objects)


@given(OBJECTS, st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3))
def test_several_conditions_select_what_each_of_them_does(objects: list[Labels], pairs: list[tuple[str, str]]) -> None:
    selector = ",".join(f"{key}={value}" for key, value in pairs)
    expected = objects
    for key, value in pairs:
        expected = chosen(expected, f"{key}={value}")
    assert chosen(objects, selector) == expected


@given(st.text())
def test_any_text_selects_or_is_refused(text: str) -> None:
    with suppress(SelectorError):
        select([{"metadata": {"name": "a"}}], label_selector=text)
    with suppress(SelectorError):
        select([{"metadata": {"name": "a"}}], field_selector=text)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=web", ["web"]),
        ("metadata.name!=web", ["db"]),
        ("metadata.namespace=shop,metadata.name=db", ["db"]),
        ("", ["web", "db"]),
    ],
)
def test_fields(selector: str, expected: list[str]) -> None:
    objects = [{"metadata": {"name": name, "namespace": "shop"}} for name in ("web", "db")]
    assert [each["metadata"]["name"] for each in select(objects, field_selector=selector)] == expected


def test_a_field_that_nobody_has_is_a_mistake_and_selects_neither_all_nor_nothing() -> None:
    with pytest.raises(SelectorError, match="cannot be selected by"):
        select([{"metadata": {"name": "web"}}], field_selector="spec.nodeName=x")
    assert select(
        [1, 2], field_selector="parity=even", fields=lambda each: {"parity": "odd" if each % 2 else "even"}
    ) == [2]


def test_a_decision_sees_fewer_conditions_than_the_evaluation() -> None:
    """A review cannot express a comparison; what is selected must not forget it."""
    assert [each.key for each in parse_label_selector("a>1,b=2")] == ["b"]
    assert [(each.key, each.operator) for each in every_label_requirement("a>1,b=2")] == [("a", "Gt"), ("b", "In")]
