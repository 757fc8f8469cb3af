"""Which decisions are remembered, for how long, and for whom; and one question for all who ask it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.authorization.cached_provider import KEY_BYTES
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.authorization.providers import (
    ALICE,
    ALLOW,
    DENY,
    GET_POD,
    KNOWN,
    PASS,
    POD,
    AtOnce,
    Keyed,
    RevisedSlow,
    Slow,
    chain,
)

# --- what is remembered ---


@pytest.mark.parametrize("kind", [AtOnce, Slow])
async def test_a_policy_change_takes_effect_within_the_lifetime(kind: Callable[[Any], Any], clock: FakeClock) -> None:
    """S44: the bound, to the second."""
    provider = kind(ALLOW)
    authorizer = chain(provider, cache_ttl=10, clock=clock)
    ruling = await authorizer.authorize(GET_POD)
    assert ruling == ALLOW
    provider.rule = lambda attributes: DENY
    clock.advance(9.9)
    assert await authorizer.authorize(GET_POD) == ALLOW
    assert authorizer.is_valid(ruling)
    clock.advance(0.1)
    assert not authorizer.is_valid(ruling)
    assert await authorizer.authorize(GET_POD) == DENY
    assert len(provider.asked) == 2


async def test_a_ruling_ends_with_the_oldest_answer_it_rests_on(clock: FakeClock) -> None:
    """S44: a decision of two providers is not older than the lifetime because one of them was asked later."""
    first, second = AtOnce(PASS), Keyed(ALLOW)
    authorizer = chain(first, second, cache_ttl=10, clock=clock)
    authorizer.decide(GET_POD)
    clock.advance(6)
    other = Attributes(ALICE, replace(POD, name="q"))
    ruling = authorizer.decide(other)
    assert ruling is not None
    assert len(second.asked) == 1
    clock.advance(3.9)
    assert authorizer.is_valid(ruling)
    clock.advance(0.1)
    assert not authorizer.is_valid(ruling)


async def test_a_raised_revision_takes_effect_at_once(clock: FakeClock) -> None:
    """S44, S57, T3."""
    provider = RevisedSlow(ALLOW)
    authorizer = chain(AtOnce(PASS), provider, clock=clock)
    ruling = await authorizer.authorize(GET_POD)
    generation = authorizer.generation
    assert authorizer.generation == generation
    provider.rule = lambda attributes: DENY
    provider.revision = 2
    assert authorizer.generation != generation
    assert not authorizer.is_valid(ruling)
    assert await authorizer.authorize(GET_POD) == DENY


async def test_a_revision_that_falls_is_a_change_too() -> None:
    """S57: a policy that was rolled back is another policy."""
    provider = RevisedSlow(ALLOW)
    authorizer = chain(provider)
    seen = {authorizer.generation}
    for revision in (2, 1, 2):
        provider.revision = revision
        seen.add(authorizer.generation)
    assert len(seen) == 4


async def test_an_answer_from_before_a_change_is_not_kept_after_it() -> None:
    """S57, T3: the question was asked of the old policy, though the answer came after the change."""
    provider = RevisedSlow(ALLOW)
    provider.gate.clear()
    authorizer = chain(provider)
    asking = asyncio.create_task(authorizer.authorize(GET_POD))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    provider.revision = 2
    joined = asyncio.create_task(authorizer.authorize(GET_POD))
    await asyncio.sleep(0)
    provider.gate.set()
    ruling = await asking
    assert not authorizer.is_valid(ruling)
    await joined
    assert len(provider.asked) == 2


class UnreadableRevision(AtOnce):
    @property
    def revision(self) -> int:
        raise OSError


def test_when_the_revision_cannot_be_read_nothing_is_remembered() -> None:
    """S57: not knowing is no reason to trust."""
    provider = UnreadableRevision(ALLOW)
    authorizer = chain(provider)
    ruling = authorizer.decide(GET_POD)
    assert ruling is not None
    assert not authorizer.is_valid(ruling)
    authorizer.decide(GET_POD)
    assert len(provider.asked) == 2


def test_a_provider_may_choose_a_coarser_key() -> None:
    """S57: more hits, and its own responsibility."""
    provider = Keyed(ALLOW)
    authorizer = chain(provider)
    for name in "abc":
        assert authorizer.decide(Attributes(ALICE, replace(POD, name=name))) == ALLOW
    authorizer.decide(Attributes(ALICE, replace(POD, verb="list")))
    assert len(provider.asked) == 2


DIFFERENT = [
    Attributes(UserInfo("alice2", groups=("dev", KNOWN)), POD),
    Attributes(replace(ALICE, uid="1"), POD),
    Attributes(replace(ALICE, groups=(KNOWN,)), POD),
    Attributes(replace(ALICE, groups=("dev", "ops", KNOWN)), POD),
    Attributes(replace(ALICE, extra=(("scopes", ("a",)),)), POD),
    *(
        Attributes(ALICE, replace(POD, **cast("dict[str, Any]", change)))
        for change in (
            {"verb": "list"},
            {"method": "HEAD"},
            {"modifier": "Watch"},
            {"path": "/"},
            {"is_resource": False},
            {"api_group": "apps"},
            {"api_version": "v2"},
            {"namespace": "x/pods/.."},
            {"resource": "secrets"},
            {"subresource": "log"},
            {"name": "q"},
            {"field_selector": ()},
            {"field_selector": (Requirement("a", "In", ("b",)),)},
            {"label_selector": (Requirement("a", "In", ("b",)),)},
            {"capabilities": ("x",)},
        )
    ),
]


def test_everything_that_matters_is_in_the_key(subtests: pytest.Subtests) -> None:
    """T1, S44, S12, S43: groups, uid, extra and selectors too."""
    for other in DIFFERENT:
        with subtests.test(other=other):
            provider = AtOnce(ALLOW)
            authorizer = chain(provider)
            authorizer.decide(GET_POD)
            authorizer.decide(other)
            assert provider.asked == [GET_POD, other]


def test_the_whole_of_the_attributes_reaches_the_provider() -> None:
    """S42, S43, S45, S46: user, groups, method, modifier, namespace, kind, name, capabilities.

    S56: and nothing of the body, which has not been read when this is decided.
    """
    provider = AtOnce(ALLOW)
    asked = Attributes(ALICE, replace(POD, modifier="Proxy", capabilities=("privileged",)))
    chain(provider).decide(asked)
    assert provider.asked == [asked]
    assert "body" not in (*RequestInfo.__slots__, *UserInfo.__slots__, *Attributes.__slots__)


def test_huge_keys_are_not_remembered() -> None:
    """T2: selectors count, so that a few huge ones cannot fill the memory."""
    provider = AtOnce(ALLOW)
    authorizer = chain(provider)
    selector = (Requirement("name", "In", tuple("x" * 1000 for _ in range(KEY_BYTES // 1000 + 1))),)
    huge = Attributes(ALICE, replace(POD, field_selector=selector))
    authorizer.decide(huge)
    authorizer.decide(huge)
    assert len(provider.asked) == 2


def test_one_user_cannot_push_out_the_decisions_of_others() -> None:
    """T2: a share of the cache for each."""
    provider = AtOnce(ALLOW)
    authorizer = chain(provider, max_entries=160)
    authorizer.decide(GET_POD)
    for number in range(500):
        authorizer.decide(Attributes(UserInfo("mallory"), replace(POD, name=str(number))))
    asked = len(provider.asked)
    authorizer.decide(GET_POD)
    assert len(provider.asked) == asked


# --- many at once ---


async def test_equal_questions_at_the_same_time_are_asked_once() -> None:
    """S4."""
    slow = Slow(ALLOW)
    slow.gate.clear()
    authorizer = chain(slow)
    waiting = [asyncio.create_task(authorizer.authorize(GET_POD)) for _ in range(50)]
    await asyncio.sleep(0)
    slow.gate.set()
    assert await asyncio.gather(*waiting) == [ALLOW] * 50
    assert len(slow.asked) == 1


async def test_a_cancelled_caller_does_not_cancel_the_others() -> None:
    """T5: the question is nobody's own."""
    slow = Slow(ALLOW)
    slow.gate.clear()
    authorizer = chain(slow)
    first, second = (asyncio.create_task(authorizer.authorize(GET_POD)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    slow.gate.set()
    assert await second == ALLOW
    assert first.cancelled()
    assert len(slow.asked) == 1


async def test_who_joins_a_question_older_than_an_answer_may_be_asks_again(clock: FakeClock) -> None:
    """S44: the bound holds for those too who did not ask themselves."""
    slow = Slow(ALLOW)
    slow.gate.clear()
    authorizer = chain(slow, cache_ttl=10, clock=clock)
    first = asyncio.create_task(authorizer.authorize(GET_POD))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.advance(10.5)
    late = asyncio.create_task(authorizer.authorize(GET_POD))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    slow.gate.set()
    await asyncio.gather(first, late)
    assert len(slow.asked) == 2


async def test_a_lifetime_of_zero_asks_every_time(clock: FakeClock) -> None:
    """S44."""
    for provider in (AtOnce(ALLOW), Slow(ALLOW)):
        authorizer = chain(provider, cache_ttl=0, clock=clock)
        for _ in range(3):
            ruling = await authorizer.authorize(GET_POD)
            assert not authorizer.is_valid(ruling)
        assert len(provider.asked) == 3


# --- cached and uncached agree ---

names = st.sampled_from(["", "a", "b", "a,b", "../a"])
attributes = st.builds(
    Attributes,
    st.builds(UserInfo, names, names, st.lists(names, max_size=2).map(tuple)),
    st.builds(
        RequestInfo,
        verb=st.sampled_from(["get", "list"]),
        method=st.just("GET"),
        path=names,
        is_resource=st.booleans(),
        namespace=names,
        name=names,
        label_selector=st.none() | st.lists(st.builds(Requirement, names, names), max_size=1).map(tuple),
    ),
)


def by_hash(asked: Attributes) -> Decision:
    number = hash(("v1", asked)) % 4
    return Decision(list(Verdict)[number % 3], f"r{number}", hidden=number == 3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(attributes, st.integers(0, 6)), max_size=12))
def test_remembered_and_fresh_decisions_agree(questions: list[tuple[Attributes, int]]) -> None:
    """T1, S44."""
    clock = FakeClock()
    remembering = chain(AtOnce(by_hash), AtOnce(by_hash), clock=clock, max_entries=32)
    fresh = chain(AtOnce(by_hash), AtOnce(by_hash), clock=clock, cache_ttl=0)
    for question, pause in questions:
        clock.advance(pause)
        assert remembering.decide(question) == fresh.decide(question)
        assert remembering.decide(question) == fresh.decide(question)
