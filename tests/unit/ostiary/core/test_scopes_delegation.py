"""A delegation only ever becomes narrower, and one that cannot be read allows nothing."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.scopes import LONGEST_ACTOR, MOST_LAYERS, NOTHING, Delegation, Scope, decode, narrow, parse_scope
from ostiary.errors import ScopeError
from ostiary.model import Attributes
from ostiary_gateway.sessions import new_token
from tests.unit.ostiary.core.scopes import OWNER, asked, random_request, random_scope

READS = narrow(None, parse_scope("get,list pods -n shop"), "agent")


def test_a_delegation_allows_what_its_scope_does() -> None:
    assert READS.allows(asked("list", "pods", "shop"))
    assert not READS.allows(asked("list", "pods", "web"))


def test_a_narrowed_delegation_must_fit_every_layer() -> None:
    narrower = READS.narrow(parse_scope("get pods --name web-1 -n shop"))
    assert narrower.allows(asked("get", "pods", "shop", "web-1"))
    assert not narrower.allows(asked("get", "pods", "shop", "web-2"))
    assert not narrower.allows(asked("list", "pods", "shop"))
    assert str(narrower) == "get pods --name web-1 -n shop"


def test_layers_are_intersected_even_if_one_of_them_is_wider() -> None:
    """As it would be if a comparison of scopes were wrong one day."""
    both = Delegation((*READS.scopes, parse_scope("* * -A")))
    assert both.allows(asked("list", "pods", "shop"))
    assert not both.allows(asked("list", "secrets", "shop"))


def test_a_wider_scope_is_refused_and_the_refusal_says_what_is_beyond() -> None:
    with pytest.raises(ScopeError, match="wider") as caught:
        READS.narrow(parse_scope("get,delete pods -n shop"))
    assert caught.value.cause == '"delete pods -n shop" is not within "get,list pods -n shop"'


def test_the_same_scope_again_is_no_further_layer() -> None:
    assert READS.narrow(READS.scopes[0]) == READS


def test_a_token_can_be_narrowed_so_often() -> None:
    delegation = narrow(None, parse_scope(f"get pods -n {','.join(f'n{number}' for number in range(MOST_LAYERS + 1))}"))
    for number in range(MOST_LAYERS, 1, -1):
        names = ",".join(f"n{each}" for each in range(number))
        delegation = delegation.narrow(parse_scope(f"get pods -n {names}"))
    with pytest.raises(ScopeError, match="too often"):
        delegation.narrow(parse_scope("get pods -n n0"))


def test_who_got_the_token_first_stays_named_when_it_is_handed_on() -> None:
    assert READS.narrow(READS.scopes[0], "helper").actor == "agent > helper"
    assert READS.narrow(READS.scopes[0]).actor == "agent"


def test_a_name_for_the_actor_that_could_mislead_is_refused(subtests: pytest.Subtests) -> None:
    for actor in ["a > b", "a\nb", " a", "a" * (LONGEST_ACTOR + 1), "\x1b[2J", "\ud800"]:
        with subtests.test(actor=actor), pytest.raises(ScopeError, match="actor"):
            narrow(None, READS.scopes[0], actor)


def test_a_token_in_the_place_of_a_name_is_refused_and_not_repeated() -> None:
    """Scope and actor are written into every audit event."""
    token = new_token().reveal()
    for make in (
        lambda: narrow(None, READS.scopes[0], token),
        lambda: parse_scope(f"get pods --name {token} -n shop"),
        lambda: parse_scope(token),
        lambda: parse_scope(f"get pods -n shop; {token} pods -n shop"),
    ):
        with pytest.raises(ScopeError, match=r"actor|invalid scope") as caught:
            make()
        assert token not in str(caught.value)
        assert token[4:20] not in str(caught.value)


def test_a_delegation_without_layers_or_rules_allows_nothing() -> None:
    assert not Delegation(()).allows(asked("get", "pods", "shop"))
    assert not NOTHING.allows(asked("get", "pods", "shop"))
    assert str(NOTHING) == "nothing"
    with pytest.raises(ScopeError, match="invalid scope"):
        narrow(None, Scope())


def test_what_cannot_be_read_allows_nothing(subtests: pytest.Subtests) -> None:
    cases = [
        *("", "null", "[]", "1", "{}", "{", '"get pods -n shop"', "get pods -n shop", "[" * 100_000),
        '{"v":2,"actor":"","scopes":["get pods -n shop"]}',
        '{"v":1,"actor":"","scopes":[]}',
        '{"v":1,"actor":"","scopes":[""]}',
        '{"v":1,"actor":"","scopes":"get pods -n shop"}',
        '{"v":1,"actor":"","scopes":["get pods -n shop", 7]}',
        '{"v":1,"actor":"","scopes":["get pods -n shop", "gibberish"]}',
        '{"v":1,"actor":7,"scopes":["get pods -n shop"]}',
        '{"v":1,"scopes":["get pods -n shop"]}',
        '{"v":1,"actor":"","scopes":["get pods -n shop"],"until":"tomorrow"}',
        json.dumps({"v": 1, "actor": "", "scopes": ["get pods -n shop"] * (MOST_LAYERS + 1)}),
    ]
    for text in cases:
        with subtests.test(text=text):
            assert decode(text) == NOTHING


def random_delegation(chance: Random) -> Delegation:
    delegation = narrow(None, random_scope(chance), chance.choice(("", "agent")))
    for _ in range(chance.randint(0, 3)):
        try:
            delegation = delegation.narrow(random_scope(chance), chance.choice(("", "helper")))
        except ScopeError:
            continue
    return delegation


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**40))
def test_a_narrowed_delegation_never_allows_what_its_parent_does_not(seed: int) -> None:
    chance = Random(seed)
    parent = random_delegation(chance)
    for scope in (random_scope(chance) for _ in range(10)):
        try:
            child = parent.narrow(scope, "helper")
        except ScopeError:
            continue
        for _ in range(20):
            attributes = Attributes(OWNER, random_request(chance))
            assert parent.allows(attributes) or not child.allows(attributes)
            assert scope.allows(attributes.request) or not child.allows(attributes)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**40))
def test_what_was_encoded_is_decoded_as_the_same(seed: int) -> None:
    delegation = random_delegation(Random(seed))
    assert decode(delegation.encode()) == delegation
    assert decode(delegation.encode()).encode() == delegation.encode()


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_no_text_whatever_is_decoded_to_more_than_nothing(text: str) -> None:
    assert decode(text) == NOTHING
