"""The chain of authorization providers: its order, its answers to operators, and its configuration."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.denials import RecentDenials
from ostiary_gateway.config.gateway_config import AuthorizationSettings
from ostiary_gateway.config.provider import Authorization, OnError
from ostiary_gateway.interfaces.authorization import Explanation, NonResourceRule, ResourceRule, Rules, Subject
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.authorization.providers import (
    ALICE,
    ALLOW,
    DENY,
    GET_POD,
    HIDDEN,
    KNOWN,
    PASS,
    POD,
    AtOnce,
    Keyed,
    Slow,
    chain,
    raises,
)

# --- the chain ---


def test_questions_that_must_be_answered_alike_have_the_same_key() -> None:
    """A replay of a log asks each of them once."""
    another = Attributes(ALICE, replace(POD, name="another"))
    elsewhere = Attributes(ALICE, replace(POD, upstream="other"))
    keyed, plain = chain(Keyed(ALLOW)), chain(Slow(ALLOW))
    assert keyed.question_key(GET_POD) == keyed.question_key(Attributes(ALICE, POD))
    assert keyed.question_key(GET_POD) != keyed.question_key(elsewhere)
    assert plain.question_key(GET_POD) != plain.question_key(another)


async def test_the_first_allow_or_deny_ends_the_chain(subtests: pytest.Subtests) -> None:
    """R14, S2, S50, S52: the end of the chain is a refusal."""
    cases: list[tuple[list[Decision], Verdict, int]] = [
        ([ALLOW, DENY], Verdict.ALLOW, 1),
        ([DENY, ALLOW], Verdict.DENY, 1),
        ([PASS, ALLOW, DENY], Verdict.ALLOW, 2),
        ([PASS, DENY, ALLOW], Verdict.DENY, 2),
        ([PASS, PASS], Verdict.NO_OPINION, 2),
        ([], Verdict.NO_OPINION, 0),
    ]
    for decisions, verdict, asked in cases:
        with subtests.test(decisions=decisions, verdict=verdict, asked=asked):
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


def test_a_refusal_is_hidden_when_everybody_says_so(subtests: pytest.Subtests) -> None:
    """S51, S52, S54, S55: who denies chooses between 404 and 403; at the end of the chain all must agree."""
    cases: list[tuple[list[Decision], bool, bool]] = [
        ([HIDDEN, HIDDEN], True, True),
        ([HIDDEN, PASS], True, False),
        ([HIDDEN, HIDDEN], False, False),
        ([PASS, replace(DENY, hidden=True)], True, True),
        ([PASS, replace(DENY, hidden=True)], False, False),
        ([HIDDEN, DENY], True, False),
    ]
    for decisions, hide, hidden in cases:
        with subtests.test(decisions=decisions, hide=hide, hidden=hidden):
            decision = chain(*map(AtOnce, decisions), hide_denied=hide).decide(GET_POD)
            assert decision is not None
            assert decision.hidden is hidden


async def test_only_reads_are_hidden_since_a_404_reads_as_success_to_what_changes_or_waits(
    subtests: pytest.Subtests,
) -> None:
    cases: list[tuple[str, dict[str, Any], bool]] = [
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
    ]
    for case, verdict in [("no opinion", HIDDEN), ("denied", replace(DENY, hidden=True))]:
        for verb, change, hidden in cases:
            with subtests.test(case, verb=verb, change=change, hidden=hidden):
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


# --- relevant groups ---


async def test_relevant_groups_are_those_of_the_whole_chain() -> None:
    """S35."""
    assert await chain(AtOnce(ALLOW), Slow(ALLOW)).relevant_groups() == {"dev", "ops"}


async def test_when_the_relevant_groups_cannot_be_had_there_is_no_answer(subtests: pytest.Subtests) -> None:
    """S37: no token with silently missing groups, whatever the link's onError says."""
    cases: list[Any] = [OSError("down"), None, "dev", ["dev"], {1}]
    for groups in cases:
        for on_error in list(OnError):
            with subtests.test(groups=groups, on_error=on_error):
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
    refusals = RecentDenials(clock=clock)
    authorizer = Authorizer.from_settings(settings, clock=clock, refusals=refusals)
    assert authorizer.cache_seconds == 7
    assert authorizer.decide(at("dev")) == DENY
    with pytest.raises(ProviderError, match="it did not answer"):
        await authorizer.authorize(at("prod"))
    slow.gate.set()
    slow.rule = lambda attributes: replace(DENY, hidden=True)
    patient = Authorizer.from_settings(replace(settings, timeout=timedelta(seconds=60)), clock=clock, refusals=refusals)
    assert (await patient.authorize(at("prod"))).hidden
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
