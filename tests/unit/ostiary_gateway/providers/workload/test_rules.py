"""Rules: the first that matches counts, and what they make is a usable name or a refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.errors import LoginRefused
from ostiary_gateway.providers.workload.patterns import Pattern, parse_template
from ostiary_gateway.providers.workload.rules import MAX_GROUPS, MAX_NAME, WorkloadNames, WorkloadRule, names_by

OWN = WorkloadNames("spiffe://example.org/x", ("own",), "7")
TEXTS = st.text(max_size=12)
CLAIMS = st.dictionaries(st.sampled_from("abc"), st.lists(TEXTS, min_size=1, max_size=3).map(tuple), max_size=3)
MATCHES = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.sampled_from(["**", "*", "x", "x/*"]).map(Pattern), max_size=2).map(tuple)
)


def rule(username: str | None = "u:{a}", **match: str) -> WorkloadRule:
    patterns = {name: (Pattern(text),) for name, text in match.items()}
    return WorkloadRule(patterns, None if username is None else parse_template(username))


def test_of_a_claim_with_several_values_one_must_match() -> None:
    assert rule(b="x").matches({"b": ("y", "x")})
    assert not rule(b="x").matches({"b": ("y",)})
    assert not rule(b="**").matches({})


def test_a_rule_without_a_name_admits_under_the_platforms_own() -> None:
    admitting = WorkloadRule({}, None, (parse_template("own"), parse_template("more")))
    assert names_by([admitting], {}, OWN) == WorkloadNames(OWN.username, ("own", "more"), "7")
    with pytest.raises(LoginRefused):
        names_by([admitting], {}, None)


def test_without_rules_the_platforms_own_names_hold_and_without_those_nobody_comes_in() -> None:
    assert names_by([], {}, OWN) == OWN
    with pytest.raises(LoginRefused):
        names_by([], {}, None)


def test_a_rule_that_matches_and_makes_no_name_is_the_end() -> None:
    with pytest.raises(LoginRefused):
        names_by([rule(b="x"), rule("fallback", b="x")], {"b": ("x",)})


@pytest.mark.parametrize("value", ["a" * MAX_NAME, "a\n", "\x7f", "a\u200b"])
def test_a_name_that_nobody_can_use_is_refused(value: str) -> None:
    with pytest.raises(LoginRefused):
        names_by([rule()], {"a": (value,)})


def test_groups_are_bounded() -> None:
    every = WorkloadRule({}, parse_template("u"), (parse_template("{a}"),))
    assert len(names_by([every], {"a": tuple(map(str, range(MAX_GROUPS)))}).groups) == MAX_GROUPS
    with pytest.raises(LoginRefused):
        names_by([every], {"a": tuple(map(str, range(MAX_GROUPS + 1)))})


@given(MATCHES, MATCHES, CLAIMS)
def test_a_rule_that_covers_another_matches_whatever_that_one_matches(
    first: dict[str, tuple[Pattern, ...]],
    second: dict[str, tuple[Pattern, ...]],
    claims: dict[str, tuple[str, ...]],
) -> None:
    earlier, later = WorkloadRule(first), WorkloadRule(second)
    if earlier.covers(later) and later.matches(claims):
        assert earlier.matches(claims)


@given(CLAIMS, st.sampled_from(["{a}", "u:{a}", "{a}-{b}"]))
def test_no_claims_make_a_name_of_the_system(claims: dict[str, tuple[str, ...]], username: str) -> None:
    made = WorkloadRule({}, parse_template(username), (parse_template("{c}"),))
    try:
        names = names_by([made], claims)
    except LoginRefused:
        return
    assert not any(name.startswith("system:") for name in (names.username, *names.groups))
    assert names.username.isprintable()
