"""The conformance suite for authorization providers:

    class TestMyProvider(AuthorizationContract):
        @pytest.fixture
        def provider(self):
            return MyProvider(...)

Further fixtures may be overridden. If one returns None, the tests that need it are skipped:

    allowed        Attributes that the provider allows
    refused        Attributes that it does not allow
    change_policy  a function (sync or async) after which `refused` is allowed

Requires pytest and pytest-asyncio (``asyncio_mode = auto``).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Hashable
from dataclasses import replace

import pytest

from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.authorization import (
    AuthorizationProvider,
    ChoosesCacheKey,
    DecidesAtOnce,
    Explains,
    Explanation,
    ListsRules,
    ListsSubjects,
    NameIndependent,
    Revised,
    Rules,
    Subject,
    TellsRights,
)
from ostiary_gateway.interfaces.lifecycle import Closes
from ostiary_gateway.testing.capabilities import check_members

# Strings are opaque: none of these may be split, trimmed, folded or treated as a pattern.
_NAMES = ("alice", "Alice", "a,b", "a|b", " alice ", "alice:x", "système", "*", "", 'x"y', "a\nb", "../a")
_GROUP_NOBODY_MENTIONS = "ostiary.dev/testing/nobody-mentions-this-group"

_POD = RequestInfo("get", "GET", "/api/v1/namespaces/dev/pods/web", True, "", "", "v1", "dev", "pods", "", "web")
_REQUESTS = (
    _POD,
    replace(_POD, verb="list", name="", label_selector=(Requirement("tier", "In", ("a", "b")),)),
    replace(
        _POD, verb="watch", name="", modifier="Watch", field_selector=(Requirement("metadata.name", "In", ("a",)),)
    ),
    replace(_POD, verb="create", method="POST", name=""),
    replace(_POD, verb="create", method="POST", subresource="exec"),
    replace(_POD, verb="deletecollection", method="DELETE", namespace="", name=""),
    replace(_POD, verb="update", method="PUT", api_group="apps", resource="deployments", subresource="scale"),
    replace(_POD, namespace="other", name="*"),
    replace(_POD, resource="*", name="*", namespace="*"),
    replace(_POD, verb="use", method="", resource="", namespace=""),
    RequestInfo("get", "GET", "/healthz"),
    RequestInfo("post", "POST", "/"),
    RequestInfo("", "", ""),
)


def questions() -> list[Attributes]:
    """Return ordinary and unusual requests."""
    users = [UserInfo(name, groups=(name, "dev"), extra=(("scopes", (name,)),)) for name in _NAMES]
    users += [UserInfo("alice", "1"), UserInfo("system:anonymous", groups=("system:unauthenticated",))]
    odd = [Attributes(user, _POD) for user in users]
    return odd + [Attributes(users[0], request) for request in _REQUESTS]


class AuthorizationContract:
    """The contract of every authorization provider. Inherit, and override at least `provider`."""

    @pytest.fixture
    def provider(self) -> AuthorizationProvider:
        raise NotImplementedError("override the fixture `provider`")

    @pytest.fixture
    def allowed(self) -> Attributes | None:
        return None

    @pytest.fixture
    def refused(self) -> Attributes | None:
        return None

    @pytest.fixture
    def change_policy(self) -> Callable[[], object] | None:
        return None

    async def test_its_members_are_spelt_and_shaped_as_the_contract_says(self, provider: AuthorizationProvider) -> None:
        check_members("authorization", provider)

    # --- decisions ---

    async def test_every_question_gets_a_decision(self, provider: AuthorizationProvider) -> None:
        for question in questions():
            decision = await provider.authorize(question)
            assert isinstance(decision, Decision), question
            assert isinstance(decision.verdict, Verdict), question
            assert isinstance(decision.reason, str), question
            assert not (decision.allowed and decision.hidden), "only a refusal can be hidden"

    async def test_what_is_decided_at_once_is_what_is_decided(self, provider: AuthorizationProvider) -> None:
        at_once = ability(provider, DecidesAtOnce)
        if at_once is None:
            pytest.skip("it does not decide at once")
        for question in questions():
            assert at_once.decide(question) == await provider.authorize(question), question

    async def test_the_same_question_gets_the_same_answer(self, provider: AuthorizationProvider) -> None:
        for question in questions()[::3]:
            assert await provider.authorize(question) == await provider.authorize(question), question

    async def test_many_questions_at_once_get_the_answers_of_one_by_one(self, provider: AuthorizationProvider) -> None:
        attributes = questions()
        together = await asyncio.gather(*(provider.authorize(question) for question in attributes))
        assert [await provider.authorize(question) for question in attributes] == together

    async def test_it_allows_what_its_policy_allows(
        self, provider: AuthorizationProvider, allowed: Attributes | None
    ) -> None:
        if allowed is None:
            pytest.skip("no fixture `allowed`")
        assert (await provider.authorize(allowed)).verdict is Verdict.ALLOW

    async def test_it_does_not_allow_what_its_policy_does_not(
        self, provider: AuthorizationProvider, refused: Attributes | None
    ) -> None:
        if refused is None:
            pytest.skip("no fixture `refused`")
        assert (await provider.authorize(refused)).verdict is not Verdict.ALLOW

    # --- groups ---

    async def test_relevant_groups_are_a_set_of_names(self, provider: AuthorizationProvider) -> None:
        groups = await provider.relevant_groups()
        assert isinstance(groups, frozenset)
        assert all(isinstance(group, str) for group in groups)
        assert _GROUP_NOBODY_MENTIONS not in groups

    async def test_a_group_that_is_not_relevant_changes_nothing(
        self, provider: AuthorizationProvider, allowed: Attributes | None, refused: Attributes | None
    ) -> None:
        """Only relevant groups are looked up, so only they may affect the decision."""
        for question in [*questions(), *filter(None, (allowed, refused))]:
            user = question.user
            more = replace(question, user=replace(user, groups=(*user.groups, _GROUP_NOBODY_MENTIONS)))
            assert _outcome(await provider.authorize(more)) == _outcome(await provider.authorize(question)), question

    async def test_the_order_of_groups_changes_nothing(
        self, provider: AuthorizationProvider, allowed: Attributes | None
    ) -> None:
        for question in [*questions()[::3], *filter(None, (allowed,))]:
            turned = replace(question, user=replace(question.user, groups=question.user.groups[::-1]))
            assert _outcome(await provider.authorize(turned)) == _outcome(await provider.authorize(question)), question

    # --- caching ---

    async def test_equal_cache_keys_mean_equal_decisions(
        self, provider: AuthorizationProvider, allowed: Attributes | None, refused: Attributes | None
    ) -> None:
        keyed = ability(provider, ChoosesCacheKey)
        if keyed is None:
            pytest.skip("it does not choose a cache key")
        decisions: dict[Hashable, tuple[Verdict, bool]] = {}
        for question in [*questions(), *filter(None, (allowed, refused))]:
            outcome = _outcome(await provider.authorize(question))
            assert decisions.setdefault(keyed.cache_key(question), outcome) == outcome, question

    async def test_where_names_do_not_matter_they_change_nothing(
        self, provider: AuthorizationProvider, allowed: Attributes | None, refused: Attributes | None
    ) -> None:
        telling = ability(provider, NameIndependent)
        if telling is None:
            pytest.skip("it does not tell where names matter")
        for question in [*questions(), *filter(None, (allowed, refused))]:
            matters: object = telling.name_matters(question)
            assert isinstance(matters, bool)
            if matters or not question.request.is_resource:
                continue
            outcome = _outcome(await provider.authorize(question))
            for name in ("", "other", *_NAMES):
                other = replace(question, request=replace(question.request, name=name))
                assert _outcome(await provider.authorize(other)) == outcome, other

    async def test_asking_does_not_change_the_revision(self, provider: AuthorizationProvider) -> None:
        revised = ability(provider, Revised)
        if revised is None:
            pytest.skip("it has no revision")
        before = revised.revision
        assert isinstance(before, int)
        await provider.authorize(questions()[0])
        await provider.relevant_groups()
        assert revised.revision == before

    async def test_a_changed_policy_decides_otherwise_and_has_another_revision(
        self, provider: AuthorizationProvider, refused: Attributes | None, change_policy: Callable[[], object] | None
    ) -> None:
        if refused is None or change_policy is None:
            pytest.skip("no fixtures `refused` and `change_policy`")
        revised = ability(provider, Revised)
        before = None if revised is None else revised.revision
        assert not (await provider.authorize(refused)).allowed
        changed = change_policy()
        if inspect.isawaitable(changed):
            await changed
        assert (await provider.authorize(refused)).allowed
        assert revised is None or revised.revision != before

    # --- explanations and listings ---

    async def test_an_explanation_explains_the_decision(
        self, provider: AuthorizationProvider, allowed: Attributes | None, refused: Attributes | None
    ) -> None:
        explaining = ability(provider, Explains)
        if explaining is None:
            pytest.skip("it does not explain")
        for question in [*questions(), *filter(None, (allowed, refused))]:
            explanation = explaining.explain(question)
            assert isinstance(explanation, Explanation)
            assert _outcome(explanation.decision) == _outcome(await provider.authorize(question)), question

    async def test_who_can_does_not_depend_on_who_asks(
        self, provider: AuthorizationProvider, allowed: Attributes | None
    ) -> None:
        listing = ability(provider, ListsSubjects)
        if listing is None:
            pytest.skip("it does not list subjects")
        for question in [*questions()[::3], *filter(None, (allowed,))]:
            subjects = listing.who_can(question)
            assert isinstance(subjects, tuple)
            assert all(isinstance(subject, Subject) for subject in subjects)
            assert listing.who_can(replace(question, user=UserInfo("somebody-else"))) == subjects, question
        if allowed is not None:
            assert listing.who_can(allowed), "somebody can do what is allowed"

    async def test_rules_are_listed_for_anybody_anywhere(
        self, provider: AuthorizationProvider, allowed: Attributes | None
    ) -> None:
        listing = ability(provider, ListsRules)
        if listing is None:
            pytest.skip("it does not list rules")
        for question in questions():
            assert isinstance(listing.rules_for(question.user, question.request.namespace), Rules)
        if allowed is not None:
            rules = listing.rules_for(allowed.user, allowed.request.namespace)
            assert rules.resource_rules or rules.non_resource_rules or rules.incomplete

    async def test_whoever_may_do_something_with_a_resource_has_rights(
        self, provider: AuthorizationProvider, allowed: Attributes | None
    ) -> None:
        telling = ability(provider, TellsRights)
        if telling is None:
            pytest.skip("it does not tell who has rights")
        for question in [*questions(), *filter(None, (allowed,))]:
            has_rights = telling.gives_rights(question.user)
            assert isinstance(has_rights, bool)
            may = question.request.is_resource and (await provider.authorize(question)).allowed
            assert has_rights or not may, question

    # --- close ---

    async def test_closing_twice_is_harmless(self, provider: AuthorizationProvider) -> None:
        closing = ability(provider, Closes)
        if closing is None:
            pytest.skip("it has nothing to close")
        await closing.close()
        await closing.close()


def _outcome(decision: Decision) -> tuple[Verdict, bool]:
    # The reason may name another rule with the same effect.
    return decision.verdict, decision.hidden
