"""What is remembered of one provider, for whom and for how long, and what it may do wrong."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, cast

import pytest

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.config.provider import OnError
from ostiary_gateway.interfaces.authorization import Explanation, Rules, Subject
from ostiary_gateway.testing import FakeClock

ALLOW = Decision(Verdict.ALLOW, "because")
DENY = Decision(Verdict.DENY, "never")
ALICE = UserInfo("alice", groups=("dev", "system:authenticated"))
POD = RequestInfo("get", "GET", "/api/v1/namespaces/x/pods/p", True, "", "", "v1", "x", "pods", "", "p")
GET_POD = Attributes(ALICE, POD)


class Waiting:
    """Answers when it is let; *decision* is what it says, or raises, at that moment."""

    def __init__(self, decision: object = ALLOW) -> None:
        self.decision = decision
        self.asked: list[Attributes] = []
        self.started, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def authorize(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        self.started.set()
        await self.gate.wait()
        if isinstance(self.decision, Exception):
            raise self.decision
        return cast(Decision, self.decision)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


class Immediate(Waiting):
    """Decides without waiting."""

    def decide(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        if isinstance(self.decision, Exception):
            raise self.decision
        return cast(Decision, self.decision)


class ByUser(Immediate):
    """Takes all requests of a user for equal."""

    def cache_key(self, attributes: Attributes) -> Hashable:
        return attributes.user.username


class Quick(Immediate):
    """To decide takes less than to look a decision up."""

    decides_quickly = True


def only(provider: object, clock: FakeClock, **options: Any) -> Authorizer:
    return Authorizer([Link("only", cast(Any, provider))], **{"cache_ttl": 10, "clock": clock, **options})


async def begun(authorizer: Authorizer, provider: Waiting, attributes: Attributes = GET_POD) -> asyncio.Task[Decision]:
    """A call that has reached the provider, which has not answered yet."""
    provider.started.clear()
    call = asyncio.create_task(authorizer.authorize(attributes))
    await provider.started.wait()
    return call


# --- lifetimes ---


@pytest.mark.parametrize("kind", [Waiting, Immediate])
async def test_a_decision_is_used_again_until_the_second_its_lifetime_ends(
    kind: type[Waiting], clock: FakeClock
) -> None:
    provider = kind()
    authorizer = only(provider, clock)
    await authorizer.authorize(GET_POD)
    provider.decision = DENY
    clock.advance(9.999)
    assert await authorizer.authorize(GET_POD) == ALLOW
    assert len(provider.asked) == 1
    clock.advance(0.001)
    assert await authorizer.authorize(GET_POD) == DENY


async def test_a_slow_answer_is_as_old_as_its_question(clock: FakeClock) -> None:
    provider = Waiting()
    authorizer = only(provider, clock)
    provider.gate.clear()
    call = await begun(authorizer, provider)
    clock.advance(6)
    provider.gate.set()
    await call
    clock.advance(3.9)
    await authorizer.authorize(GET_POD)
    assert len(provider.asked) == 1
    clock.advance(0.1)
    await authorizer.authorize(GET_POD)
    assert len(provider.asked) == 2


async def test_one_that_decides_quickly_is_asked_each_time(clock: FakeClock) -> None:
    provider = Quick()
    authorizer = only(provider, clock)
    rulings = [authorizer.decide(GET_POD), await authorizer.authorize(GET_POD)]
    assert len(provider.asked) == 2
    assert [ruling.until for ruling in rulings if ruling is not None] == [clock.monotonic() + 10] * 2
    provider.decision = Decision(Verdict.DENY, "no")
    refusal = authorizer.decide(GET_POD)
    assert refusal is not None
    assert not refusal.allowed, "nothing of it is kept"
    provider.decision = RuntimeError("broken")
    with pytest.raises(ProviderError):
        authorizer.decide(GET_POD)


async def test_one_that_waits_is_not_quick(clock: FakeClock) -> None:
    provider = Waiting()
    provider.decides_quickly = True  # type: ignore[attr-defined]
    authorizer = only(provider, clock)
    for _ in range(2):
        assert (await authorizer.authorize(GET_POD)).allowed
    assert len(provider.asked) == 1


async def test_a_provider_that_takes_long_to_decide_at_once_is_not_believed_for_longer(clock: FakeClock) -> None:
    class Ponderous(Immediate):
        def decide(self, attributes: Attributes) -> Decision:
            clock.advance(4)
            return super().decide(attributes)

    provider = Ponderous()
    authorizer = only(provider, clock)
    ruling = authorizer.decide(GET_POD)
    assert ruling is not None
    clock.advance(5.9)
    assert authorizer.is_valid(ruling)
    assert authorizer.decide(GET_POD) == ALLOW
    assert len(provider.asked) == 1
    clock.advance(0.1)
    assert not authorizer.is_valid(ruling)
    authorizer.decide(GET_POD)
    assert len(provider.asked) == 2


async def test_of_two_rulings_the_shorter_life_bounds_what_is_remembered(clock: FakeClock) -> None:
    """The first link answered six seconds before the second was asked: what follows from both lives for four more."""
    first, second = ByUser(Decision(Verdict.NO_OPINION)), Immediate()
    authorizer = Authorizer([Link("first", first), Link("second", second)], cache_ttl=10, clock=clock)
    authorizer.decide(Attributes(ALICE, replace(POD, name="other")))
    clock.advance(6)
    ruling = authorizer.decide(GET_POD)
    assert ruling is not None
    assert (len(first.asked), len(second.asked)) == (1, 2)
    clock.advance(3.999)
    assert authorizer.is_valid(ruling)
    clock.advance(0.001)
    assert not authorizer.is_valid(ruling)


async def test_who_joins_a_lookup_that_is_exactly_as_old_as_an_answer_may_be_takes_its_answer(
    clock: FakeClock,
) -> None:
    provider = Waiting()
    authorizer = only(provider, clock)
    provider.gate.clear()
    first = await begun(authorizer, provider)
    clock.advance(10)
    late = asyncio.create_task(authorizer.authorize(GET_POD))
    await asyncio.sleep(0)
    provider.gate.set()
    assert (await first, await late) == (ALLOW, ALLOW)
    assert len(provider.asked) == 1


async def test_a_caller_that_joins_an_in_flight_lookup_older_than_the_ttl_starts_a_new_one(clock: FakeClock) -> None:
    provider = Waiting()
    authorizer = only(provider, clock)
    provider.gate.clear()
    first = await begun(authorizer, provider)
    clock.advance(10.001)
    late = asyncio.create_task(authorizer.authorize(GET_POD))
    await asyncio.sleep(0)
    provider.gate.set()
    await first
    provider.decision = DENY
    assert await late == DENY, "it hears what is true now"
    assert len(provider.asked) == 2


# --- a policy that changes ---


class Revised(Waiting):
    revision = 1


async def test_a_policy_that_changes_while_a_provider_decides_makes_the_ruling_an_old_one(clock: FakeClock) -> None:
    provider = Revised()
    authorizer = only(provider, clock)
    provider.gate.clear()
    asking = asyncio.create_task(authorizer.authorize(GET_POD))
    await provider.started.wait()
    provider.revision = 2
    provider.gate.set()
    ruling = await asking
    assert ruling == ALLOW
    assert not authorizer.is_valid(ruling)
    provider.decision = DENY
    assert await authorizer.authorize(GET_POD) == DENY


async def test_a_policy_that_changes_while_another_link_is_waited_for_is_asked_anew(clock: FakeClock) -> None:
    """The second link has an answer from before its change, made while the first was waited for."""

    class RevisedByUser(Revised):
        def cache_key(self, attributes: Attributes) -> Hashable:
            return attributes.user.username

    first, second = Waiting(Decision(Verdict.NO_OPINION)), RevisedByUser()
    authorizer = Authorizer([Link("first", first), Link("second", second)], cache_ttl=10, clock=clock)
    await authorizer.authorize(GET_POD)
    first.gate.clear()
    call = await begun(authorizer, first, Attributes(replace(ALICE, uid="7"), POD))
    second.revision, second.decision = 2, DENY
    first.gate.set()
    assert (await call).verdict is Verdict.DENY
    assert len(second.asked) == 2


async def test_whatever_a_provider_takes_for_equal_capabilities_are_told_apart(clock: FakeClock) -> None:
    """S46: one object's answer is not another's."""

    class ByUser(Revised):
        def cache_key(self, attributes: Attributes) -> Hashable:
            return attributes.user.username

    provider = ByUser()
    authorizer = Authorizer([Link("one", provider)], cache_ttl=10, clock=clock)
    for names in ((), ("privileged",), (), ("privileged",)):
        await authorizer.authorize(Attributes(ALICE, replace(POD, capabilities=names)))
    assert [attributes.request.capabilities for attributes in provider.asked] == [(), ("privileged",)]


async def test_a_provider_without_a_revision_never_changes_the_generation(clock: FakeClock) -> None:
    authorizer = only(Waiting(), clock)
    generations = {authorizer.generation}
    await authorizer.authorize(GET_POD)
    clock.advance(60)
    generations.add(authorizer.generation)
    assert len(generations) == 1


async def test_two_links_that_change_are_two_changes(clock: FakeClock) -> None:
    """One that rises and one that falls do not cancel each other out."""
    first, second = Revised(), Revised()
    authorizer = Authorizer([Link("first", first), Link("second", second)], clock=clock)
    generations = [authorizer.generation]
    first.revision, second.revision = 2, 0
    generations.append(authorizer.generation)
    second.revision = 5
    generations.append(authorizer.generation)
    assert len(set(generations)) == 3


# --- bounds ---


@pytest.mark.parametrize("kind", [Waiting, Immediate])
async def test_one_users_entries_evict_only_that_users_entries(kind: type[Waiting], clock: FakeClock) -> None:
    provider = kind()
    authorizer = only(provider, clock, max_entries=160)
    await authorizer.authorize(GET_POD)
    mallory = [Attributes(UserInfo("mallory"), replace(POD, name=str(number))) for number in range(200)]
    for attributes in mallory:
        await authorizer.authorize(attributes)
    asked = len(provider.asked)
    await authorizer.authorize(GET_POD)
    await authorizer.authorize(mallory[-1])
    assert len(provider.asked) == asked
    await authorizer.authorize(mallory[0])
    assert len(provider.asked) == asked + 1


@pytest.mark.parametrize("length", [15_000, 17_000])
@pytest.mark.parametrize("chosen", [False, True])
async def test_a_key_of_more_than_sixteen_thousand_bytes_is_not_kept(
    clock: FakeClock, length: int, chosen: bool
) -> None:
    class ByPath(Immediate):
        def cache_key(self, attributes: Attributes) -> Hashable:
            return attributes.request.path

    provider = ByPath() if chosen else Immediate()
    authorizer = only(provider, clock)
    long = Attributes(ALICE, replace(POD, path="/" + "x" * length))
    for _ in range(2):
        authorizer.decide(long)
    assert len(provider.asked) == (1 if length < 16_000 else 2)


@pytest.mark.parametrize("what", ["attributes", "reason"])
async def test_what_is_counted_are_bytes_two_mebibytes_for_one_user(clock: FakeClock, what: str) -> None:
    """About two hundred answers of ten thousand bytes each; the oldest make room."""
    text = "x" * 10_000
    provider = Immediate(Decision(Verdict.ALLOW, text if what == "reason" else ""))
    authorizer = only(provider, clock)
    selector = (Requirement("a", "In", (text,)),) if what == "attributes" else None
    questions = [Attributes(ALICE, replace(POD, name=str(number), label_selector=selector)) for number in range(300)]
    for question in questions:
        authorizer.decide(question)
    provider.asked.clear()
    kept = 0
    for question in reversed(questions):
        authorizer.decide(question)
        if provider.asked:
            break
        kept += 1
    assert 150 < kept < 210


# --- many at once ---


async def test_cancelling_one_of_those_who_wait_leaves_the_others_their_answer(clock: FakeClock) -> None:
    provider = Waiting()
    authorizer = only(provider, clock)
    provider.gate.clear()
    first = await begun(authorizer, provider)
    others = [asyncio.create_task(authorizer.authorize(GET_POD)) for _ in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    others[0].cancel()
    await asyncio.sleep(0)
    provider.gate.set()
    assert await asyncio.gather(*others[1:]) == [ALLOW, ALLOW]
    assert first.cancelled()
    assert others[0].cancelled()
    assert len(provider.asked) == 1


async def test_a_failure_reaches_everyone_who_waits_and_the_next_one_asks_again(clock: FakeClock) -> None:
    provider = Waiting(OSError("no route to host"))
    authorizer = only(provider, clock)
    provider.gate.clear()
    calls = [await begun(authorizer, provider), *(asyncio.create_task(authorizer.authorize(GET_POD)) for _ in "ab")]
    await asyncio.sleep(0)
    provider.gate.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ProviderError] * 3
    assert len(provider.asked) == 1
    provider.decision = ALLOW
    assert await authorizer.authorize(GET_POD) == ALLOW


async def test_a_provider_that_hangs_is_asked_by_nobody_for_longer_than_the_limit() -> None:
    provider = Waiting()
    provider.gate.clear()
    authorizer = Authorizer([Link("slow", provider)], timeout=0.01)
    outcomes = await asyncio.gather(*(authorizer.authorize(GET_POD) for _ in range(3)), return_exceptions=True)
    causes = {outcome.cause for outcome in outcomes if isinstance(outcome, ProviderError)}
    assert all(cause is not None and cause.startswith("it did not answer") for cause in causes)
    assert [type(outcome) for outcome in outcomes] == [ProviderError] * 3


async def test_a_lookup_that_was_given_up_is_cancelled() -> None:
    class Noticing(Waiting):
        cancelled = False

        async def authorize(self, attributes: Attributes) -> Decision:
            try:
                return await super().authorize(attributes)
            except asyncio.CancelledError:
                self.cancelled = True
                raise

    provider = Noticing()
    provider.gate.clear()
    with pytest.raises(ProviderError):
        await Authorizer([Link("slow", provider)], timeout=0.01).authorize(GET_POD)
    await asyncio.sleep(0)
    assert provider.cancelled


async def test_a_provider_that_holds_up_everything_is_unavailable_and_not_a_failure_of_ours() -> None:
    """It blocks for so long that the limit of the cache, which is twice as long, is over at the same moment."""

    class Blocking(Waiting):
        async def authorize(self, attributes: Attributes) -> Decision:
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
            return await super().authorize(attributes)

    provider = Blocking()
    provider.gate.clear()
    with pytest.raises(ProviderError, match='"slow" is unavailable') as caught:
        await Authorizer([Link("slow", provider)], timeout=0.01).authorize(GET_POD)
    assert caught.value.cause is not None
    assert "it did not answer" in caught.value.cause


# --- what it may do wrong, and what the operator is told ---


async def test_the_cause_says_what_the_provider_did(subtests: pytest.Subtests) -> None:
    cases = [
        (None, "it returned nothing and not a Decision"),
        (True, "it returned a bool and not a Decision"),
        (OSError("no route to host"), "it raised an error: OSError: no route to host"),
    ]
    table: list[type[Waiting]] = [Waiting, Immediate]
    for value, cause in cases:
        for kind in table:
            with subtests.test(value=value, cause=cause, kind=kind):
                clock = FakeClock()
                with pytest.raises(ProviderError) as caught:
                    await only(kind(value), clock).authorize(GET_POD)
                assert (caught.value.summary, caught.value.cause) == (
                    'the authorization provider "only" is unavailable',
                    cause,
                )


async def test_a_key_that_nothing_can_be_found_by_is_named_as_the_cause(clock: FakeClock) -> None:
    class Unhashable(Immediate):
        def cache_key(self, attributes: Attributes) -> Hashable:
            return cast(Hashable, ["x"])

    class Failing(Immediate):
        def cache_key(self, attributes: Attributes) -> Hashable:
            raise KeyError("x")

    for provider, cause in (
        (Unhashable(), "the cache key is not hashable"),
        (Failing(), "it could not choose a cache"),
    ):
        with pytest.raises(ProviderError, match=cause):
            only(provider, clock).decide(GET_POD)
        assert provider.asked == []


async def test_groups_that_are_no_set_of_names_are_named_as_the_cause(clock: FakeClock) -> None:
    class Groups(Waiting):
        groups: object = None

        async def relevant_groups(self) -> frozenset[str]:
            return cast("frozenset[str]", self.groups)

    provider = Groups()
    for groups, kind in ((None, "nothing"), (["dev"], "a list"), ({1}, "a set"), ({"dev", 1}, "a set")):
        provider.groups = groups
        with pytest.raises(ProviderError, match=f"relevant_groups returned {kind} and not a set of names"):
            await only(provider, clock).relevant_groups()
    provider.groups = {"dev"}
    assert await only(provider, clock).relevant_groups() == frozenset({"dev"})


class Telling(Immediate):
    """Tells an operator whatever it was made with."""

    answer: object = None

    def explain(self, attributes: Attributes) -> Explanation:
        return cast(Explanation, self._told())

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]:
        return cast("tuple[Subject, ...]", self._told())

    def rules_for(self, user: UserInfo, namespace: str) -> Rules:
        return cast(Rules, self._told())

    def _told(self) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (OSError("down"), "it raised an error: OSError: down"),
        (None, "explain returned nothing"),
        ("because", "explain returned a str"),
        (Explanation(cast(Decision, "yes")), "it returned a str and not a Decision"),
    ],
)
async def test_an_explanation_that_is_none_is_an_error_of_its_link(
    answer: object, cause: str, clock: FakeClock
) -> None:
    provider = Telling()
    provider.answer = answer
    explanation = await only(provider, clock).explain(GET_POD)
    assert explanation.decision is None
    assert explanation.steps[0].error == cause
    assert explanation.error == f'the authorization provider "only" is unavailable: {cause}'


@pytest.mark.parametrize("kind", [Waiting, Immediate])
async def test_who_cannot_explain_is_asked_for_a_decision_anew(kind: type[Waiting], clock: FakeClock) -> None:
    provider = kind()
    authorizer = only(provider, clock)
    await authorizer.authorize(GET_POD)
    provider.decision = DENY
    explanation = await authorizer.explain(GET_POD)
    assert explanation.decision == DENY
    assert explanation.steps[0].explanation == Explanation(DENY)
    provider.decision = OSError("down")
    assert (await authorizer.explain(GET_POD)).steps[0].error == "it raised an error: OSError: down"
    provider.decision = None
    assert (await authorizer.explain(GET_POD)).steps[0].error == "it returned nothing and not a Decision"


def test_subjects_that_cannot_be_listed_are_an_error(clock: FakeClock) -> None:
    provider = Telling()
    provider.answer = OSError("down")
    with pytest.raises(ProviderError, match="it raised an error: OSError: down"):
        only(provider, clock).who_can(GET_POD)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(OSError("down"), "only: it raised an error: OSError: down"), (None, "only: rules_for returned nothing")],
)
def test_rules_that_cannot_be_listed_make_the_list_incomplete(answer: object, cause: str, clock: FakeClock) -> None:
    provider = Telling()
    provider.answer = answer
    rules = only(provider, clock).rules_for(ALICE, "x")
    assert (rules.incomplete, rules.error) == (True, cause)


# --- a link that may be passed over ---


async def test_a_link_that_fails_is_passed_over_only_where_it_may_be(clock: FakeClock) -> None:
    broken, after = Waiting(OSError("down")), Waiting(ALLOW)
    strict = Authorizer([Link("broken", broken), Link("after", after)], clock=clock)
    with pytest.raises(ProviderError):
        await strict.authorize(GET_POD)
    assert after.asked == []
    lenient = Authorizer([Link("broken", broken, OnError.NO_OPINION), Link("after", after)], clock=clock)
    assert await lenient.authorize(GET_POD) == ALLOW


async def test_a_late_failure_of_a_provider_that_was_given_up_is_no_news() -> None:
    """Nobody retrieves it: it must not be reported as an exception that was never looked at."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))

    class FailsLate(Waiting):
        async def authorize(self, attributes: Attributes) -> Decision:
            try:
                await self.gate.wait()
            finally:
                raise OSError("too late")

    provider = FailsLate()
    provider.gate.clear()
    with pytest.raises(ProviderError, match="it did not answer"):
        await Authorizer([Link("slow", provider)], timeout=0.01).authorize(GET_POD)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert reports == []
