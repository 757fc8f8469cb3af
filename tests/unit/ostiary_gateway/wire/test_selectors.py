"""Selectors are read as Kubernetes reads them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import Requirement
from ostiary_gateway.wire.selectors import SelectorError, parse_field_selector, parse_label_selector

LABELS = [
    ("", ()),
    ("   ", ()),
    ("a=b", (("a", "In", "b"),)),
    ("a==b", (("a", "In", "b"),)),
    ("a = b", (("a", "In", "b"),)),
    ("a!=b", (("a", "NotIn", "b"),)),
    ("a=", (("a", "In", ""),)),
    ("a=,b", (("a", "In", ""), ("b", "Exists"))),
    ("a", (("a", "Exists"),)),
    ("!a", (("a", "DoesNotExist"),)),
    ("! a", (("a", "DoesNotExist"),)),
    ("a in (x,y)", (("a", "In", "x", "y"),)),
    ("a in(y , x)", (("a", "In", "x", "y"),)),
    ("a notin (x)", (("a", "NotIn", "x"),)),
    ("a in ()", (("a", "In", ""),)),
    ("a in (x,)", (("a", "In", "", "x"),)),
    ("a in (,x)", (("a", "In", "", "x"),)),
    ("a in (x,,y)", (("a", "In", "", "x", "y"),)),
    ("in in (in,notin)", (("in", "In", "in", "notin"),)),
    ("notin", (("notin", "Exists"),)),
    ("example.com/app=x,b", (("example.com/app", "In", "x"), ("b", "Exists"))),
    ("a>5,b<3,c", (("c", "Exists"),)),
    ("b=1,a=2", (("b", "In", "1"), ("a", "In", "2"))),
]
NO_LABELS = ["a b", "a in", "a in x", "a in (x", "a in (x y)", "a,", ",a", "a,,b", "!", "!!a", "!a=b", "=b", "a=(b)"]
NO_LABELS += ["a===b", "a=b=c", "a=!b", "a in (x))", "a IN (x)", "-a", "a-", "/a", "a/", "a/b/c", "A.b/c=d", "a=-b"]
NO_LABELS += ["é=b", "a=é", "a>x", "a>", f"a={'x' * 64}", f"{'x' * 64}=a", f"{'x' * 254}/a", "a\x00=b", "a\xa0b"]

FIELDS = [
    ("", ()),
    (",", ()),
    ("a=b", (("a", "In", "b"),)),
    ("a==b", (("a", "In", "b"),)),
    ("a!=b", (("a", "NotIn", "b"),)),
    ("a=", (("a", "In", ""),)),
    ("=a", (("", "In", "a"),)),
    ("b=1,a=2", (("a", "In", "2"), ("b", "In", "1"))),
    (r"a=x\,y\=z\\", (("a", "In", "x,y=z\\"),)),
    ("a= b", (("a", "In", " b"),)),
    ("a=!b", (("a", "In", "!b"),)),
    ("a.b/c=é", (("a.b/c", "In", "é"),)),
]
NO_FIELDS = ["a", "a,b=c", "a=b=c", "a===b", "a=\\", r"a=\x", "a!b", "a=\udcff"]


def rows(found: tuple[Requirement, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((one.key, one.operator, *one.values) for one in found)


def test_a_label_selector(subtests: pytest.Subtests) -> None:
    for text, expected in LABELS:
        with subtests.test(text=text, expected=expected):
            assert rows(parse_label_selector(text)) == expected


def test_what_is_no_label_selector(subtests: pytest.Subtests) -> None:
    for text in NO_LABELS:
        with subtests.test(text=text), pytest.raises(SelectorError):
            parse_label_selector(text)


def test_a_field_selector(subtests: pytest.Subtests) -> None:
    for text, expected in FIELDS:
        with subtests.test(text=text, expected=expected):
            assert rows(parse_field_selector(text)) == expected


def test_what_is_no_field_selector(subtests: pytest.Subtests) -> None:
    for text in NO_FIELDS:
        with subtests.test(text=text), pytest.raises(SelectorError):
            parse_field_selector(text)


@given(st.text(st.sampled_from("ab=!(),<> in/.\\-\udcff"), max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    for parse in (parse_label_selector, parse_field_selector):
        try:
            found = parse(text)
        except SelectorError:
            continue
        assert all(one.operator in ("In", "NotIn", "Exists", "DoesNotExist") for one in found)


@given(st.dictionaries(st.text("abc.", min_size=1, max_size=5), st.text("ab,=\\é", max_size=8), max_size=4))
@settings(max_examples=100, deadline=None)
def test_an_escaped_value_comes_back(wanted: dict[str, str]) -> None:
    escaped = {key: "".join("\\" + char if char in "\\,=" else char for char in value) for key, value in wanted.items()}
    found = parse_field_selector(",".join(f"{key}={value}" for key, value in escaped.items()))
    assert {one.key: one.values[0] for one in found} == wanted
