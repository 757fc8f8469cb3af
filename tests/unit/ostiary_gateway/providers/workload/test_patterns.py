"""Patterns match what they say and nothing else; templates give no two workloads the same name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.providers.workload.patterns import NoValue, Pattern, check_pattern, parse_template

PARTS = st.text(st.sampled_from("ab/:.*{}é "), min_size=1, max_size=8)


def test_a_pattern_matches_whole_values_and_a_star_one_part(subtests: pytest.Subtests) -> None:
    cases = [
        ("acme/shop", "acme/shop", True),
        ("acme/shop", "acme/shop2", False),
        ("acme/shop", "ACME/shop", False),
        ("acme.shop", "acmexshop", False),
        ("acme/*", "acme/shop", True),
        ("acme/*", "acme/", False),
        ("acme/*", "acme/shop/evil", False),
        ("*/shop", "acme/shop", True),
        ("*", "acme", True),
        ("*", "acme/shop", False),
        ("**", "acme/shop", True),
        ("**", "", False),
        ("refs/heads/**", "refs/heads/feature/x", True),
        ("refs/heads/*", "refs/heads/feature/x", False),
        ("refs/heads/*", "refs/heads/main\n", True),
        ("repo:acme/*:ref:refs/heads/main", "repo:acme/shop:ref:refs/heads/main", True),
        ("repo:acme/*:ref:refs/heads/main", "repo:acme/shop:environment:x:ref:refs/heads/main", False),
        ("repo:acme/**:ref:refs/heads/main", "repo:acme/shop:environment:x:ref:refs/heads/main", True),
        ("release-*", "release-", False),
        ("[ab]", "a", False),
        ("?", "a", False),
    ]
    for pattern, value, matches in cases:
        with subtests.test(pattern=pattern, value=value, matches=matches):
            assert Pattern(pattern).matches(value) is matches


@given(PARTS)
def test_a_text_without_stars_matches_itself_alone(text: str) -> None:
    plain = text.replace("*", "x")
    assert Pattern(plain).matches(plain)
    assert not Pattern(plain).matches(plain + "a")
    assert not Pattern(plain).matches("a" + plain)


@given(st.lists(st.sampled_from(["a", "/", ":", "*", "**", "b"]), max_size=6), PARTS)
def test_a_pattern_that_covers_another_matches_all_that_it_matches(pieces: list[str], value: str) -> None:
    text = "".join(pieces).replace("***", "**")
    broad, narrow = Pattern(text or "**"), Pattern(value.replace("*", ""))
    if broad.covers(narrow) and narrow.text:
        assert broad.matches(narrow.text)


@given(
    st.lists(st.sampled_from(["a", "/", ":", "*", "**", "b"]), min_size=1, max_size=8), st.text("ab/:\n", max_size=10)
)
def test_stars_mean_what_a_regular_expression_says(pieces: list[str], value: str) -> None:
    text = re.sub(r"\*{3,}", "**", "".join(pieces))
    expression = "".join({"**": ".+", "*": "[^/:]+"}.get(part, re.escape(part)) for part in re.split(r"(\*+)", text))
    assert Pattern(text).matches(value) is (re.fullmatch(expression, value, re.DOTALL) is not None)


@pytest.mark.parametrize("text", ["*-*-*-*-*-*-*-*:x", "**-**-**-**-**-**-**-**:x"])
def test_a_value_cannot_make_a_pattern_slow(text: str) -> None:
    assert check_pattern(text) == ""
    value = "-" * 5_000
    assert not Pattern(text).matches(value), "one that tries one way after the other is not ready in a lifetime"
    assert Pattern(text).matches(f"{value}:x")


@pytest.mark.parametrize("text", ["", "***", "a***b", "*a*a*a*a*a*a*a*a*a", "x" * 1025])
def test_a_pattern_that_would_be_slow_or_means_nothing_is_a_mistake(text: str) -> None:
    assert check_pattern(text)


def test_a_template_is_made_of_claims() -> None:
    claims = {"repository": ("acme/shop",), "ref": ("main",), "groups": ("a", "b")}
    assert parse_template("ci:{repository}").render(claims) == "ci:acme/shop"
    assert parse_template("{repository}@{ref}!").render(claims) == "acme/shop@main!"
    assert parse_template("team:{groups}").render_each(claims) == ["team:a", "team:b"]
    assert parse_template("deployers").render_each(claims) == ["deployers"]
    assert parse_template("{missing}").render_each(claims) == []


@pytest.mark.parametrize("template", ["{missing}", "{groups}", "a{missing}b{repository}"])
def test_a_name_needs_one_value_of_each_claim(template: str) -> None:
    with pytest.raises(NoValue):
        parse_template(template).render({"repository": ("acme/shop",), "groups": ("a", "b")})


def test_a_template_that_cannot_be_meant_is_a_mistake(subtests: pytest.Subtests) -> None:
    for text in ["", "{", "}", "{a", "a}", "{}", "{a}{b}", "{a{b}}", "{{a}}"]:
        with subtests.test(text=text), pytest.raises(ValueError, match=r".+"):
            parse_template(text)


def test_a_separator_that_a_value_could_complete_is_noticed() -> None:
    template = parse_template("{a}::{b}")
    assert template.render({"a": ("x",), "b": (":y",)}) == "x:::y"
    with pytest.raises(NoValue):
        template.render({"a": ("x:",), "b": ("y",)})


@given(PARTS, PARTS, PARTS, PARTS, st.sampled_from([":", "/", "::", "a"]))
def test_two_workloads_with_different_claims_have_different_names(
    first: str, second: str, third: str, fourth: str, between: str
) -> None:
    template = parse_template(f"ci:{{a}}{between}{{b}}")
    try:
        one = template.render({"a": (first,), "b": (second,)})
        other = template.render({"a": (third,), "b": (fourth,)})
    except NoValue:
        return
    assert (one == other) == ((first, second) == (third, fourth))
