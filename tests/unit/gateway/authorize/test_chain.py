"""The chain, what it remembers, and what it does with providers that break their contract."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Hashable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import ProviderError
from ostiary.gateway.authorize.cached_provider import KEY_BYTES, Link
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.authorize.refusals import Refusals
from ostiary.gateway.config.settings import Authorization, AuthorizationSettings, OnError
from ostiary.interfaces.authorization import Explanation, NonResourceRule, ResourceRule, Rules, Subject
from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary.testing import FakeClock

ALLOW = Decision(Verdict.ALLOW, "because")
DENY = Decision(Verdict.DENY, "never")
PASS = Decision(Verdict.NO_OPINION, "not mine")
HIDDEN = Decision(Verdict.NO_OPINION, hidden=True)

KNOWN = "system:authenticated"
ALICE = UserInfo("alice", groups=("dev", KNOWN))
POD = RequestInfo("get", "GET", "/api/v1/namespaces/x/pods/p", True, "", "", "v1", "x", "pods", "", "p")
GET_POD = Attributes(ALICE, POD)


class AtOnce:
    """Decides by *rule* without waiting, and counts."""

    def __init__(self, rule: Callable[[Attributes], Any] | Decision) -> None:
        self.rule = rule if callable(rule) else lambda attributes: rule
        self.asked: list[Attributes] = []
        self.groups: Any = frozenset({"dev"})

    def decide(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        return cast(Decision, self.rule(attributes))

    async def authorize(self, attributes: Attributes) -> Decision:
        raise AssertionError("the gateway calls decide")

    async def relevant_groups(self) -> frozenset[str]:
        if isinstance(self.groups, Exception):
            raise self.groups
        return cast("frozenset[str]", self.groups)


class Slow:
    """Answers when it is told to; by default at once, but asynchronously."""

    def __init__(self, rule: Callable[[Attributes], Any] | Decision) -> None:
        self.rule = rule if callable(rule) else lambda attributes: rule
        self.asked: list[Attributes] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def authorize(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        await self.gate.wait()
        found = self.rule(attributes)
        return cast(Decision, await found if inspect.isawaitable(found) else found)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset({"ops"})


class RevisedSlow(Slow):
    revision = 1


class Keyed(AtOnce):
    def cache_key(self, attributes: Attributes) -> Hashable:
        return attributes.user.username, attributes.request.verb


def raises(error: BaseException) -> Callable[[Attributes], Any]:
    def rule(attributes: Attributes) -> Any:
        raise error

    return rule


def chain(*providers: Any, on_error: OnError = OnError.DENY, **options: Any) -> Authorizer:
    links = [Link(f"p{number}", provider, on_error) for number, provider in enumerate(providers)]
    return Authorizer(links, **{"timeout": 5.0, **options})


# --- the chain ---


@pytest.mark.parametrize(
    ("decisions", "verdict", "asked"),
    [
        ([ALLOW, DENY], Verdict.ALLOW, 1),
        ([DENY, ALLOW], Verdict.DENY, 1),
        ([PASS, ALLOW, DENY], Verdict.ALLOW, 2),
        ([PASS, DENY, ALLOW], Verdict.DENY, 2),
        ([PASS, PASS], Verdict.NO_OPINION, 2),
        ([], Verdict.NO_OPINION, 0),
    ],
)
async def test_the_first_allow_or_deny_ends_the_chain(decisions: list[Decision], verdict: Verdict, asked: int) -> None:
    """R14, S2, S50, S52: the end of the chain is a refusal."""
    providers = [AtOnce(decision) for decision in decisions]
    decision = await chain(*providers).authorize(GET_POD)
    assert decision.verdict is verdict
    assert decision.allowed is (verdict is Verdict.ALLOW)
    assert sum(len(provider.asked) for provider in providers) == asked
    assert chain(*providers).decide(GET_POD) == decision


def test_reasons_of_those_without_an_opinion_are_joined_with_their_names() -> None:
    """R14."""
    quiet = Decision(Verdict.NO_OPINION)
    decision = chain(AtOnce(PASS), AtOnce(quiet), AtOnce(PASS)).decide(GET_POD)
    assert decision == Decision(Verdict.NO_OPINION, "p0: not mine; p2: not mine")


def test_the_reason_of_the_one_who_decides_stands_as_it_is() -> None:
    """R14, 2.7: tools that read the audit log of Kubernetes know these texts."""
    assert chain(AtOnce(PASS), AtOnce(ALLOW)).decide(GET_POD) == ALLOW


@pytest.mark.parametrize(
    ("decisions", "hide", "hidden"),
    [
        ([HIDDEN, HIDDEN], True, True),
        ([HIDDEN, PASS], True, False),
        ([HIDDEN, HIDDEN], False, False),
        ([PASS, replace(DENY, hidden=True)], True, True),
        ([PASS, replace(DENY, hidden=True)], False, False),
        ([HIDDEN, DENY], True, False),
    ],
)
def test_a_refusal_is_hidden_when_everybody_says_so(decisions: list[Decision], hide: bool, hidden: bool) -> None:
    """S51, S52, S54, S55: who denies chooses between 404 and 403; at the end of the chain all must agree."""
    decision = chain(*map(AtOnce, decisions), hide_denied=hide).decide(GET_POD)
    assert decision is not None
    assert decision.hidden is hidden


@pytest.mark.parametrize("verdict", [HIDDEN, replace(DENY, hidden=True)], ids=["no opinion", "denied"])
@pytest.mark.parametrize(
    ("verb", "change", "hidden"),
    [
        ("get", {}, True),
        ("list", {"name": ""}, True),
        ("get", {"subresource": "log"}, True),
        ("get", {"subresource": "exec"}, False),
        ("get", {"subresource": "attach"}, False),
        ("get", {"subresource": "portforward"}, False),
        ("get", {"subresource": "proxy", "modifier": "Proxy"}, False),
        ("proxy", {"modifier": "Proxy"}, False),
        ("watch", {"modifier": "Watch"}, False),
        ("create", {}, False),
        ("update", {}, False),
        ("patch", {}, False),
        ("delete", {}, False),
        ("deletecollection", {"name": ""}, False),
        ("impersonate", {}, False),
        ("approve", {}, False),
        ("", {}, False),
    ],
)
async def test_only_reads_are_hidden_since_a_404_reads_as_success_to_what_changes_or_waits(
    verdict: Decision, verb: str, change: dict[str, Any], hidden: bool
) -> None:
    attributes = Attributes(ALICE, replace(POD, verb=verb, **change))
    authorizer = chain(AtOnce(verdict), hide_denied=True)
    decision = authorizer.decide(attributes)
    assert decision is not None
    assert decision.hidden is hidden
    explained = (await authorizer.explain(attributes)).decision
    assert explained is not None
    assert explained.hidden is hidden


def test_nothing_is_hidden_by_default() -> None:
    decision = Authorizer([Link("p", AtOnce(HIDDEN))]).decide(GET_POD)
    assert decision is not None
    assert not decision.hidden


def test_nothing_is_waited_for_when_every_provider_needed_decides_at_once() -> None:
    assert chain(AtOnce(ALLOW), Slow(DENY)).decide(GET_POD) == ALLOW
    assert chain(AtOnce(PASS), Slow(DENY)).decide(GET_POD) is None


async def test_a_slow_decision_is_had_at_once_the_second_time() -> None:
    """S4: N calls ask the slow system once."""
    slow = Slow(ALLOW)
    authorizer = chain(AtOnce(PASS), slow)
    assert authorizer.decide(GET_POD) is None
    assert await authorizer.authorize(GET_POD) == ALLOW
    assert all(authorizer.decide(GET_POD) == ALLOW for _ in range(100))
    assert len(slow.asked) == 1


# --- providers that break their contract ---

BROKEN: dict[str, Callable[[Attributes], Any] | Decision] = {
    "raises": raises(RuntimeError("password=hunter2-hunter2")),
    "returns None": lambda attributes: None,
    "returns True": lambda attributes: True,
    "returns a text for a verdict": lambda attributes: Decision(cast(Verdict, "allow")),
    "refuses with ours": raises(ProviderError("the directory is away", cause="connection refused")),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("kind", [AtOnce, Slow])
async def test_a_provider_that_breaks_its_contract_ends_the_chain_with_an_error(
    how: str, kind: Callable[[Any], Any]
) -> None:
    """S53, T5: fail closed, and tell "could not ask" from "no"."""
    broken, after = kind(BROKEN[how]), AtOnce(ALLOW)
    with pytest.raises(ProviderError) as caught:
        await chain(broken, after).authorize(GET_POD)
    assert '"p0" is unavailable' in caught.value.summary
    assert "hunter2" not in str(caught.value)
    assert after.asked == []


async def test_a_provider_that_gives_up_by_itself_does_not_look_cancelled() -> None:
    """T5: else the caller would end as though somebody had cancelled it, without an answer."""
    with pytest.raises(ProviderError, match="is unavailable"):
        await chain(Slow(raises(asyncio.CancelledError()))).authorize(GET_POD)


class Stubborn:
    """Hangs, and resists being cancelled."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def authorize(self, attributes: Attributes) -> Decision:
        while True:
            try:
                await self.gate.wait()
                return ALLOW
            except asyncio.CancelledError:
                continue

    async def relevant_groups(self) -> frozenset[str]:
        await self.gate.wait()
        return frozenset()


async def test_a_provider_that_hangs_is_given_up() -> None:
    """S53, T5."""
    hanging, stubborn = Slow(ALLOW), Stubborn()
    hanging.gate.clear()
    for provider in (hanging, stubborn):
        with pytest.raises(ProviderError, match="is unavailable") as caught:
            await chain(provider, timeout=0.25).authorize(GET_POD)
        assert "within 0.25 seconds" in str(caught.value)
    with pytest.raises(ProviderError):
        await chain(stubborn, timeout=0.25).relevant_groups()
    stubborn.gate.set()


async def test_a_method_that_is_not_async_is_an_error_and_no_answer() -> None:
    class NotAsync(AtOnce):
        decide = None  # type: ignore[assignment]

        def authorize(self, attributes: Attributes) -> Decision:  # type: ignore[override]
            return ALLOW

    with pytest.raises(ProviderError):
        await chain(NotAsync(ALLOW)).authorize(GET_POD)


async def test_a_chain_may_go_on_without_a_provider_and_later_allow() -> None:
    """2.8: allow outranks error. S53: if nobody decides, it is an error and no refusal."""
    broken = AtOnce(raises(OSError("no route")))
    assert await chain(broken, AtOnce(ALLOW), on_error=OnError.NO_OPINION).authorize(GET_POD) == ALLOW
    assert await chain(broken, AtOnce(DENY), on_error=OnError.NO_OPINION).authorize(GET_POD) == DENY
    with pytest.raises(ProviderError, match='"p0" is unavailable'):
        await chain(broken, AtOnce(HIDDEN), on_error=OnError.NO_OPINION).authorize(GET_POD)
    with pytest.raises(ProviderError) as caught:
        chain(broken, broken, on_error=OnError.NO_OPINION).decide(GET_POD)
    assert '"p0"' in str(caught.value)
    assert '"p1"' in str(caught.value)


@pytest.mark.parametrize("kind", [AtOnce, Slow])
async def test_errors_are_not_remembered(kind: Callable[[Any], Any]) -> None:
    """T5: errors are never cached as answers."""
    provider = kind(raises(OSError()))
    authorizer = chain(provider)
    for _ in range(3):
        with pytest.raises(ProviderError):
            await authorizer.authorize(GET_POD)
    assert len(provider.asked) == 3
    provider.rule = lambda attributes: ALLOW
    assert await authorizer.authorize(GET_POD) == ALLOW


async def test_what_was_decided_without_somebody_may_not_be_used_again() -> None:
    """T5: he who is unavailable may be the one who denies."""
    authorizer = chain(AtOnce(raises(OSError())), AtOnce(ALLOW), on_error=OnError.NO_OPINION)
    ruling = await authorizer.authorize(GET_POD)
    assert ruling == ALLOW
    assert not authorizer.still_holds(ruling)


def test_attributes_that_cannot_be_looked_up_open_nothing() -> None:
    odd = Attributes(replace(ALICE, groups=cast("tuple[str, ...]", [*ALICE.groups])), POD)
    with pytest.raises(ProviderError):
        chain(AtOnce(ALLOW)).decide(odd)


class BadKey(AtOnce):
    def cache_key(self, attributes: Attributes) -> Hashable:
        raise KeyError("x")


def test_a_provider_that_cannot_choose_a_key_is_an_error() -> None:
    with pytest.raises(ProviderError, match="is unavailable"):
        chain(BadKey(ALLOW)).decide(GET_POD)


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
    assert authorizer.still_holds(ruling)
    clock.advance(0.1)
    assert not authorizer.still_holds(ruling)
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
    assert authorizer.still_holds(ruling)
    clock.advance(0.1)
    assert not authorizer.still_holds(ruling)


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
    assert not authorizer.still_holds(ruling)
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
    assert not authorizer.still_holds(ruling)
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
    assert not authorizer.still_holds(ruling)
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


@pytest.mark.parametrize("other", DIFFERENT)
def test_everything_that_matters_is_in_the_key(other: Attributes) -> None:
    """T1, S44, S12, S43: groups, uid, extra and selectors too."""
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
            assert not authorizer.still_holds(ruling)
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


# --- relevant groups ---


async def test_relevant_groups_are_those_of_the_whole_chain() -> None:
    """S35."""
    assert await chain(AtOnce(ALLOW), Slow(ALLOW)).relevant_groups() == {"dev", "ops"}


@pytest.mark.parametrize("groups", [OSError("down"), None, "dev", ["dev"], {1}])
@pytest.mark.parametrize("on_error", list(OnError))
async def test_when_the_relevant_groups_cannot_be_had_there_is_no_answer(groups: Any, on_error: OnError) -> None:
    """S37: no token with silently missing groups, whatever the link's onError says."""
    provider = AtOnce(ALLOW)
    provider.groups = groups
    with pytest.raises(ProviderError):
        await chain(AtOnce(ALLOW), provider, on_error=on_error).relevant_groups()


# --- what an operator asks ---


class Telling(AtOnce):
    def explain(self, attributes: Attributes) -> Explanation:
        return Explanation(self.decide(attributes), closest="rule 7", failed="the verb", remedy="verbs: [get]")

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]:
        return (Subject("User", "bob", via="rule 7"), Subject("Group", "ops"))

    def rules_for(self, user: UserInfo, namespace: str) -> Rules:
        return Rules((ResourceRule(("get",), ("",), ("pods",)),))


async def test_an_explanation_follows_the_chain_and_asks_anew() -> None:
    telling, plain, last = Telling(PASS), Slow(DENY), AtOnce(ALLOW)
    authorizer = chain(telling, plain, last)
    await authorizer.authorize(GET_POD)
    found = await authorizer.explain(GET_POD)
    assert found.decision == DENY
    assert [step.name for step in found.steps] == ["p0", "p1", "p2"]
    assert found.steps[0].explanation == Explanation(PASS, "rule 7", "the verb", "verbs: [get]")
    assert found.steps[1].explanation == Explanation(DENY)
    assert found.steps[2].explanation is None
    assert (len(telling.asked), len(plain.asked), last.asked) == (2, 2, [])


async def test_an_explanation_says_who_could_not_be_asked() -> None:
    broken = AtOnce(raises(OSError("no route to host")))
    found = await chain(broken, AtOnce(ALLOW)).explain(GET_POD)
    assert found.decision is None
    assert "no route to host" in found.error
    assert "no route to host" in found.steps[0].error
    assert found.steps[1].error == ""
    assert (await chain(broken, AtOnce(ALLOW), on_error=OnError.NO_OPINION).explain(GET_POD)).decision == ALLOW


def test_who_can_names_the_link_and_who_cannot_tell() -> None:
    found = chain(Telling(PASS), AtOnce(PASS)).who_can(GET_POD)
    assert found.subjects == (Subject("User", "bob", via="p0: rule 7"), Subject("Group", "ops", via="p0"))
    assert found.unknown == ("p1",)


def test_rules_are_incomplete_when_somebody_cannot_tell() -> None:
    """2.4: a list of rules tells that it is not all."""
    complete = chain(Telling(PASS), Telling(PASS)).rules_for(ALICE, "x")
    assert (len(complete.resource_rules), complete.incomplete, complete.error) == (2, False, "")
    partial = chain(Telling(PASS), Slow(PASS)).rules_for(ALICE, "x")
    assert (len(partial.resource_rules), partial.incomplete) == (1, True)
    assert partial.error == "p1: this provider cannot list rules"


def test_a_refusal_is_found_by_its_id(clock: FakeClock) -> None:
    authorizer = chain(AtOnce(PASS), clock=clock)
    first, second = (authorizer.record(GET_POD, PASS) for _ in range(2))
    assert first != second
    assert len(first) == 16
    assert first.isalnum()
    found = authorizer.recall(f" {first.upper()} ")
    assert found is not None
    assert (found.id, found.attributes, found.decision, found.at) == (first, GET_POD, PASS, clock.now())
    assert authorizer.recall("unknown") is None


def test_refusals_are_bounded_and_nobody_pushes_out_all_others(clock: FakeClock) -> None:
    """T2."""
    authorizer = chain(clock=clock)
    mine = authorizer.record(GET_POD, PASS)
    flood = [authorizer.record(Attributes(UserInfo("mallory"), POD), PASS) for _ in range(5000)]
    assert authorizer.recall(mine) is not None
    assert authorizer.recall(flood[0]) is None
    assert authorizer.recall(flood[-1]) is not None


# --- the groups that nobody attests ---


class Listing(Slow):
    """Tells the users that it is asked about, whatever the question is."""

    def explain(self, attributes: Attributes) -> Explanation:
        self.asked.append(attributes)
        return Explanation(ALLOW)

    def rules_for(self, user: UserInfo, namespace: str) -> Rules:
        self.asked.append(Attributes(user, POD))
        return Rules()


async def test_every_provider_is_asked_about_a_user_with_the_implied_groups() -> None:
    first, second = AtOnce(PASS), Listing(ALLOW)
    authorizer = Authorizer([Link("first", first), Link("second", second)])
    await authorizer.authorize(GET_POD)
    await authorizer.explain(GET_POD)
    authorizer.rules_for(ALICE, "x")
    asked = [*first.asked, *second.asked]
    assert len(asked) == 5
    assert {attributes.user.groups for attributes in asked} == {("dev", "system:authenticated")}


# --- a policy for each upstream ---


def at(upstream: str) -> Attributes:
    return Attributes(ALICE, replace(POD, upstream=upstream))


async def test_a_right_at_one_upstream_is_none_at_another() -> None:
    dev, prod = AtOnce(ALLOW), AtOnce(PASS)
    chain = [Link("dev", dev, upstreams=frozenset({"dev"})), Link("prod", prod, upstreams=frozenset({"prod"}))]
    authorizer = Authorizer(chain)
    assert (await authorizer.authorize(at("dev"))).allowed
    assert not (await authorizer.authorize(at("prod"))).allowed
    assert not (await authorizer.authorize(at("other"))).allowed
    # What is done at no upstream is decided by those who decide for all of them.
    assert not (await authorizer.authorize(at(""))).allowed
    assert [one.upstream for one in dev.asked] == ["dev"]
    assert [one.upstream for one in prod.asked] == ["prod"]


async def test_who_decides_for_all_decides_also_where_there_is_no_upstream() -> None:
    authorizer = Authorizer([Link("all", AtOnce(ALLOW))])
    for upstream in ("dev", "prod", ""):
        assert (await authorizer.authorize(at(upstream))).allowed


@pytest.mark.parametrize("kind", [AtOnce, Keyed, Slow])
async def test_the_upstream_is_in_the_key_whatever_the_provider_chooses(kind: type[AtOnce] | type[Slow]) -> None:
    """A decision about one cluster is never used for another, also where a provider takes both for equal."""
    provider = kind(lambda attributes: ALLOW if attributes.upstream == "dev" else DENY)
    authorizer = Authorizer([Link("only", provider)])
    for _ in range(2):
        assert (await authorizer.authorize(at("dev"))).allowed
        assert not (await authorizer.authorize(at("prod"))).allowed
    assert len(provider.asked) == 2


async def test_a_provider_for_other_upstreams_tells_nothing_about_what_is_hidden() -> None:
    restricted = Link("dev", AtOnce(ALLOW), upstreams=frozenset({"dev"}))
    hiding = Authorizer([restricted, Link("all", AtOnce(HIDDEN))], hide_denied=True)
    hidden = await hiding.authorize(at("prod"))
    told = await Authorizer([restricted, Link("all", AtOnce(PASS))], hide_denied=True).authorize(at("prod"))
    assert (hidden.hidden, told.hidden) == (True, False)
    assert "its policy applies to other upstreams" in told.reason


async def test_explanations_rules_and_subjects_are_those_of_the_upstream() -> None:
    class Telling(Listing):
        def who_can(self, attributes: Attributes) -> tuple[Subject, ...]:
            return (Subject("User", "alice"),)

        def rules_for(self, user: UserInfo, namespace: str) -> Rules:
            return Rules((ResourceRule(("get",), ("",), ("pods",)),))

    authorizer = Authorizer([Link("dev", Telling(ALLOW), upstreams=frozenset({"dev"}))])
    explained = await authorizer.explain(at("prod"))
    assert explained.decision is not None
    assert not explained.decision.allowed
    assert explained.steps[0].explanation is not None
    assert explained.steps[0].explanation.decision.reason == "its policy applies to other upstreams"
    assert authorizer.rules_for(ALICE, "x", upstream="dev").resource_rules
    assert not authorizer.rules_for(ALICE, "x", upstream="prod").resource_rules
    assert authorizer.who_can(at("dev")).subjects
    assert not authorizer.who_can(at("prod")).subjects
    # An operator who names no upstream is told of all.
    assert authorizer.who_can(at("")).subjects


# --- the chain of a configuration ---


async def test_a_configured_chain_has_the_settings_that_were_written(clock: FakeClock) -> None:
    slow = Slow(ALLOW)
    slow.gate.clear()
    settings = AuthorizationSettings(
        (
            Authorization("dev", "x", AtOnce(DENY), upstreams=frozenset({"dev"})),
            Authorization("broken", "x", AtOnce(raises(OSError())), on_error=OnError.NO_OPINION),
            Authorization("slow", "x", slow),
        ),
        cache_ttl=timedelta(seconds=7),
        timeout=timedelta(seconds=0.25),
        hide_denied=True,
    )
    refusals = Refusals(clock=clock)
    authorizer = Authorizer.from_settings(settings, clock=clock, refusals=refusals)
    assert authorizer.cache_seconds == 7
    assert authorizer.decide(at("dev")) == DENY
    with pytest.raises(ProviderError, match="it did not answer"):
        await authorizer.authorize(at("prod"))
    slow.gate.set()
    slow.rule = lambda attributes: replace(DENY, hidden=True)
    assert (await authorizer.authorize(at("prod"))).hidden
    decision_id = authorizer.record(GET_POD, DENY)
    assert refusals.recall(decision_id) is not None, "a reload keeps the refusals of before"


def test_a_configured_chain_remembers_no_more_than_was_written(clock: FakeClock) -> None:
    provider = AtOnce(ALLOW)
    settings = AuthorizationSettings((Authorization("p", "x", provider),), cache_entries=16)
    authorizer = Authorizer.from_settings(settings, clock=clock)
    for name in "aba":
        authorizer.decide(Attributes(ALICE, replace(POD, name=name)))
    assert len(provider.asked) == 3, "one user has a sixteenth of the entries"


def test_decisions_live_for_ten_seconds_unless_told_otherwise(clock: FakeClock) -> None:
    authorizer = Authorizer([Link("p", AtOnce(ALLOW))], clock=clock)
    assert authorizer.cache_seconds == 10
    ruling = authorizer.decide(GET_POD)
    assert ruling is not None
    assert ruling.until == clock.monotonic() + 10


async def test_a_link_for_other_upstreams_is_passed_over_in_every_way_of_asking() -> None:
    """A policy for one cluster opens nothing at another: at once, after waiting, and in an explanation."""
    dev, everywhere = AtOnce(ALLOW), AtOnce(PASS)
    authorizer = Authorizer([Link("dev", dev, upstreams=frozenset({"dev"})), Link("all", everywhere)])
    expected = Decision(Verdict.NO_OPINION, "dev: its policy applies to other upstreams; all: not mine")
    assert authorizer.decide(at("prod")) == expected
    assert await authorizer.authorize(at("prod")) == expected
    assert (await authorizer.explain(at("prod"))).decision == expected
    assert dev.asked == []
    assert authorizer.decide(at("dev")) == ALLOW


# --- what an operator is told, in detail ---


async def test_one_link_that_cannot_be_asked_is_named_by_its_own_error() -> None:
    broken = AtOnce(raises(OSError("no route")))
    with pytest.raises(ProviderError) as caught:
        await chain(AtOnce(PASS), broken, on_error=OnError.NO_OPINION).authorize(GET_POD)
    assert caught.value.summary == 'the authorization provider "p1" is unavailable'


async def test_two_links_that_cannot_be_asked_are_both_named() -> None:
    broken = [AtOnce(raises(OSError(text))) for text in ("no route", "refused")]
    authorizer = chain(*broken, AtOnce(PASS), on_error=OnError.NO_OPINION)
    with pytest.raises(ProviderError) as caught:
        await authorizer.authorize(GET_POD)
    assert caught.value.summary == "an authorization provider is unavailable"
    assert caught.value.cause == (
        'the authorization provider "p0" is unavailable: it raised an error: OSError: no route; '
        'the authorization provider "p1" is unavailable: it raised an error: OSError: refused'
    )
    explanation = await authorizer.explain(GET_POD)
    assert explanation.decision is None
    assert [step.error for step in explanation.steps] == [
        "it raised an error: OSError: no route",
        "it raised an error: OSError: refused",
        "",
    ]
    assert explanation.error == f"{caught.value.summary}: {caught.value.cause}"


def test_rules_that_a_link_cannot_list_are_told_with_its_name_and_cause() -> None:
    class Failing(Telling):
        def rules_for(self, user: UserInfo, namespace: str) -> Rules:
            raise OSError("down")

    class Partial(Telling):
        def rules_for(self, user: UserInfo, namespace: str) -> Rules:
            rule = NonResourceRule(("get",), ("/healthz",))
            return Rules((), (rule,), incomplete=True, error="a rule was left out")

    rules = chain(Failing(PASS), Partial(PASS), Telling(PASS)).rules_for(ALICE, "x")
    assert rules == Rules(
        (ResourceRule(("get",), ("",), ("pods",)),),
        (NonResourceRule(("get",), ("/healthz",)),),
        incomplete=True,
        error="p0: it raised an error: OSError: down; p1: a rule was left out",
    )
    assert chain(Failing(PASS)).rules_for(ALICE, "x").incomplete


def test_the_latest_refusals_are_told_with_the_groups_that_were_decided_on() -> None:
    authorizer = chain(AtOnce(PASS))
    bare = Attributes(UserInfo("alice", groups=("dev",)), POD)
    ids = [authorizer.record(bare, PASS, f"id-{number}") for number in range(3)]
    latest = authorizer.recent_refusals(2)
    assert [refusal.id for refusal in latest] == ids[:0:-1]
    assert {refusal.attributes.user.groups for refusal in latest} == {("dev", KNOWN)}
