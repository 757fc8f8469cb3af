"""Cedar policies: what they can say, what is refused when they are read, and who is asked about what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import ConfigReader
from ostiary.core.yaml import parse as parse_yaml
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.catalog import Context, load
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.providers.cedar import CedarAuthorization
from ostiary_gateway.providers.cedar.provider import CedarPolicies, evaluate, parse, policy_set, statements
from ostiary_gateway.providers.common.policy_files import PolicyText
from ostiary_gateway.testing import FakeClock

POD = RequestInfo("get", "GET", "/api/v1/namespaces/dev/pods/web", True, "", "", "v1", "dev", "pods", "", "web")
SECRET = replace(POD, resource="secrets")
HEALTH = RequestInfo("get", "GET", "/healthz")
ALICE = UserInfo("alice", groups=("dev",))


def provider(tmp_path: Path, text: str, **options: Any) -> CedarAuthorization:
    (tmp_path / "policy.cedar").write_text(text)
    return CedarAuthorization([tmp_path], **options)


def policies(text: str) -> CedarPolicies:
    return parse([PolicyText("policy.cedar", text)])


def decide(tmp_path: Path, text: str, who: UserInfo = ALICE, what: RequestInfo = POD, **options: Any) -> Decision:
    return provider(tmp_path, text, **options).decide(Attributes(who, what))


# --- deciding ---


def test_permit_allows_forbid_denies_and_nothing_is_no_opinion(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S2, S12, S50, S52."""
    cases = [
        ("permit(principal, action, resource);", Verdict.ALLOW),
        ('permit(principal == User::"alice", action == Action::"get", resource);', Verdict.ALLOW),
        ('permit(principal == User::"Alice", action, resource);', Verdict.NO_OPINION),
        ('permit(principal in User::"alice", action, resource);', Verdict.ALLOW),
        ('permit(principal in Group::"dev", action, resource);', Verdict.ALLOW),
        ('permit(principal in Group::"ops", action, resource);', Verdict.NO_OPINION),
        ('permit(principal is User in Group::"dev", action, resource);', Verdict.ALLOW),
        ("permit(principal is User, action, resource);", Verdict.ALLOW),
        ('permit(principal in Group::"system:authenticated", action, resource);', Verdict.ALLOW),
        ('permit(principal, action in [Action::"list", Action::"get"], resource);', Verdict.ALLOW),
        ('permit(principal, action == Action::"list", resource);', Verdict.NO_OPINION),
        ('permit(principal, action, resource in Namespace::"dev");', Verdict.ALLOW),
        ('permit(principal, action, resource in Namespace::"prod");', Verdict.NO_OPINION),
        ("permit(principal, action, resource is Resource);", Verdict.ALLOW),
        ("permit(principal, action, resource is Path);", Verdict.NO_OPINION),
        ('permit(principal, action, resource) when { resource.resource == "pods" };', Verdict.ALLOW),
        ('permit(principal, action, resource) when { resource.name like "web*" };', Verdict.ALLOW),
        ('permit(principal, action, resource) when { resource.apiGroup == "apps" };', Verdict.NO_OPINION),
        ('permit(principal, action, resource) when { resource.subresource != "" };', Verdict.NO_OPINION),
        ('permit(principal, action, resource) unless { principal in Group::"dev" };', Verdict.NO_OPINION),
        ('permit(principal, action, resource) when { principal.name == "alice" };', Verdict.ALLOW),
        ('permit(principal, action, resource) when { resource.path == "" };', Verdict.ALLOW),
        ('permit(principal, action, resource) when { context.modifier == "" };', Verdict.ALLOW),
        ("forbid(principal, action, resource);", Verdict.DENY),
        ('forbid(principal == User::"bob", action, resource);', Verdict.NO_OPINION),
        ("permit(principal, action, resource); forbid(principal, action, resource);", Verdict.DENY),
        ('permit(principal, action, resource); forbid(principal in Group::"dev", action, resource);', Verdict.DENY),
        ("", Verdict.NO_OPINION),
    ]
    for text, verdict in cases:
        with subtests.test(text=text, verdict=verdict):
            tmp_path = tmp_path_factory.mktemp("case")
            assert decide(tmp_path, text).verdict is verdict


def test_a_path_is_its_own_kind_of_resource(tmp_path: Path) -> None:
    text = 'permit(principal, action, resource == Path::"/healthz") when { resource.path == "/healthz" };'
    assert decide(tmp_path, text, what=HEALTH).allowed
    assert not decide(tmp_path, text, what=replace(HEALTH, path="/healthz/")).allowed
    assert not decide(tmp_path, text).allowed


def test_whoever_is_not_known_is_not_authenticated(tmp_path: Path) -> None:
    text = 'permit(principal in Group::"system:authenticated", action, resource);'
    anonymous = UserInfo("system:anonymous", groups=("system:unauthenticated",))
    assert not decide(tmp_path, text, anonymous).allowed


def test_names_are_opaque(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    """S14: no text of a user can become part of a policy."""
    for name in ['a"b', "a\\", "a\nb", "*", "", "système:🔑", 'x") || true //']:
        with subtests.test(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            text = 'permit(principal == User::"alice", action, resource);'
            assert not decide(tmp_path, text, UserInfo(name)).allowed
            everybody = 'permit(principal, action, resource) when { principal.name != "x" };'
            assert decide(
                tmp_path, everybody, UserInfo(name, groups=(name,)), replace(POD, name=name, namespace=name)
            ).allowed


def test_two_policies_on_a_line_have_two_names(tmp_path: Path) -> None:
    text = "permit(principal, action, resource);" * 2
    file = tmp_path / "policy.cedar"
    assert decide(tmp_path, text).reason == f"Cedar: allowed by {file}:1, {file}:1 (2)"


def test_the_reason_names_the_policies(tmp_path: Path) -> None:
    text = '// readers\n@id("readers")\npermit(principal, action, resource);\n\npermit(principal, action, resource);\n'
    assert decide(tmp_path, text).reason == f"Cedar: allowed by {tmp_path}/policy.cedar:5, readers"
    assert decide(tmp_path, '@id("no")forbid(principal,action,resource);').reason == "Cedar: forbidden by no"


def test_a_forbid_that_cannot_be_evaluated_allows_nothing(tmp_path: Path) -> None:
    """T5: the engine leaves out a policy that fails, and a forbid must not be left out."""
    fails = "9223372036854775807 + 1 > 0"
    permit = "permit(principal, action, resource);"
    with pytest.raises(ProviderError, match="forbid"):
        decide(tmp_path, f"{permit} forbid(principal, action, resource) when {{ {fails} }};")
    with pytest.raises(ProviderError, match="forbid"):
        decide(tmp_path, f"forbid(principal, action, resource) when {{ {fails} }};")
    assert decide(tmp_path, f"{permit} permit(principal, action, resource) when {{ {fails} }};").allowed
    other = "forbid(principal, action, resource);"
    assert decide(tmp_path, f"{other} forbid(principal, action, resource) when {{ {fails} }};").verdict is Verdict.DENY


@pytest.mark.parametrize(
    ("text", "hide", "hidden"),
    [
        ('permit(principal == User::"bob", action, resource);', False, True),
        ('permit(principal == User::"alice", action == Action::"list", resource);', False, False),
        ('permit(principal == User::"alice", action == Action::"list", resource);', True, True),
        ('forbid(principal, action == Action::"list", resource);', False, True),
    ],
)
def test_a_refusal_is_hidden_when_no_permit_can_concern_the_user(
    text: str, hide: bool, hidden: bool, tmp_path: Path
) -> None:
    """S54, S55: conditions cannot be judged in advance, so more than that is a setting."""
    assert decide(tmp_path, text, hide=hide).hidden is hidden
    assert not decide(tmp_path, text, hide=hide, what=HEALTH).hidden


# --- groups ---


async def test_every_group_that_is_mentioned_is_relevant(tmp_path: Path) -> None:
    """S35: in the scope, in conditions, in sets and in forbids."""
    text = """
    permit(principal in Group::"a", action, resource);
    permit(principal is User in Group::"b", action, resource);
    forbid(principal, action, resource) unless { principal in Group::"c" || principal in [Group::"d", Group::"e"] };
    permit(principal in Group::"system:authenticated", action, resource in Namespace::"not-a-group");
    // permit(principal in Group::"comment", action, resource);
    permit(principal == User::"x", action, resource) when { resource.name == "Group::\\"text\\"" };
    """
    assert await provider(tmp_path, text).relevant_groups() == {"a", "b", "c", "d", "e"}


# --- the index ---


def test_the_engine_is_given_those_policies_only_that_can_concern_the_user() -> None:
    """The cost of a decision does not grow with policies for others."""
    others = "".join(f'permit(principal == User::"u{n}", action, resource);' for n in range(50))
    text = (
        others
        + """
    @id("mine") permit(principal == User::"alice", action, resource);
    @id("group") permit(principal in Group::"dev", action, resource);
    @id("all") forbid(principal, action, resource is Path);
    @id("ops") forbid(principal in Group::"ops", action, resource);
    """
    )
    found = policies(text)
    assert sorted(policy.id for policy in found.slice_for(ALICE).policies) == ["all", "group", "mine"]
    assert [policy.id for policy in found.slice_for(UserInfo("nobody")).policies] == ["all"]


def test_users_with_the_same_groups_share_what_is_kept_ready() -> None:
    found = policies('permit(principal in Group::"dev", action, resource);')
    assert found.slice_for(UserInfo("a", groups=("x", "dev"))) is found.slice_for(UserInfo("b", groups=("dev", "y")))


names = st.sampled_from(["a", "b"])
scopes = st.sampled_from(
    [
        "principal",
        "principal is User",
        *(
            form % name
            for name in ("a", "b")
            for form in ('principal == User::"%s"', 'principal in Group::"%s"', 'principal is User in Group::"%s"')
        ),
    ]
)
conditions = st.sampled_from(["", ' when { principal in Group::"b" }', ' unless { resource.name == "a" }'])
one_policy = st.builds(
    lambda effect, scope, condition: f"{effect}({scope}, action, resource){condition};",
    st.sampled_from(["permit", "forbid"]),
    scopes,
    conditions,
)
questions = st.builds(
    Attributes,
    st.builds(UserInfo, names, groups=st.sets(names).map(lambda groups: tuple(sorted(groups)))),
    st.builds(replace, st.just(POD), name=names),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(one_policy, max_size=5), st.lists(questions, min_size=1, max_size=4))
def test_the_slice_decides_as_the_whole_does(texts: list[str], asked: list[Attributes]) -> None:
    """The index is only about speed."""
    found = policies("\n".join(texts))
    whole = policy_set(found.all)
    for question in asked:
        assert found.slice_for(question.user).decide(question)[0] is evaluate(whole, question)[0]


# --- reading ---


def test_a_mistake_is_told_when_the_policy_is_read(subtests: pytest.Subtests) -> None:
    """T7: a restriction that would never apply is a mistake, and not a surprise later."""
    cases = [
        ("permit(principal, action", "not a Cedar policy"),
        ('permit(principal == User::"a, action, resource);', "not a Cedar policy"),
        ("nonsense;", "not a Cedar policy"),
        (";", "not a Cedar policy"),
        ("permit(principal == ?principal, action, resource);", "templates"),
        ('permit(principal == Group::"dev", action, resource);', "applicable"),
        ('forbid(principal in Namespace::"dev", action, resource);', "applicable"),
        ('forbid(principal in Team::"dev", action, resource);', "Team"),
        ('permit(principal, action, resource == Resource::"pods");', "no id"),
        ('forbid(principal, action, resource) when { resource.namepsace == "x" };', "namepsace"),
        ("forbid(principal, action, resource) when { resource.name == 1 };", "compatible"),
        ('permit(principal, action, resource) when { context.verb == "get" };', "verb"),
        ('@id("x") permit(principal,action,resource); @id("x") forbid(principal,action,resource);', "another policy"),
    ]
    for text, word in cases:
        with subtests.test(text=text, word=word):
            with pytest.raises(ConfigurationError) as caught:
                policies(f"permit(principal, action, resource);\n\n{text}")
            assert word in str(caught.value)
            assert {problem.place.line for problem in caught.value.problems} == {3}


def test_verbs_are_anybodys_to_invent(tmp_path: Path) -> None:
    """S46: a verb or modifier of an API of one's own."""
    text = 'permit(principal, action == Action::"restart", resource) when { context.modifier == "Restart" };'
    assert decide(tmp_path, text, what=replace(POD, verb="restart", modifier="Restart")).allowed
    assert not decide(tmp_path, text, what=replace(POD, verb="never-named")).allowed


def test_a_condition_can_be_about_what_the_object_asks_for(tmp_path: Path) -> None:
    """S46: and the right to use a capability is one like any other."""
    text = (
        'permit(principal, action == Action::"create", resource) unless { context.capabilities.contains("host-pid") };'
        'permit(principal, action == Action::"use", resource)'
        ' when { resource.apiGroup == "ostiary.dev" && resource.name == "privileged" };'
    )
    create = replace(POD, verb="create")
    assert decide(tmp_path, text, what=create).allowed
    assert decide(tmp_path, text, what=replace(create, capabilities=("privileged",))).allowed
    assert not decide(tmp_path, text, what=replace(create, capabilities=("host-pid", "privileged"))).allowed
    use = replace(POD, verb="use", api_group="ostiary.dev", resource="capabilities", name="privileged")
    assert decide(tmp_path, text, what=use).allowed
    assert not decide(tmp_path, text, what=replace(use, name="host-pid")).allowed


def test_statements_end_at_semicolons_that_are_none_of_a_string_or_comment() -> None:
    text = '// one; two\na "x;\\";y" b; // c;\n\n  d // e;\n f;g'
    assert list(statements(text)) == [(2, 'a "x;\\";y" b;'), (4, "d // e;\n f;"), (5, "g")]


between = st.lists(st.sampled_from([" ", "\n", '// c; " d\n', "//\n"]), max_size=3).map("".join)
wholes = st.sampled_from(["a;", 'b ";";', 'c "\\";" ;', "d\n// x;\n;", 'e "//" f;', '"\\\\";'])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(between, wholes), max_size=6), between)
def test_statements_are_found_whole_whatever_stands_between(parts: list[tuple[str, str]], end: str) -> None:
    text, expected = "", []
    for blank, whole in parts:
        text += blank
        expected.append((1 + text.count("\n"), whole))
        text += whole
    assert list(statements(text + end)) == expected


# --- telling ---


def test_who_can_tries_everybody_the_policy_names(tmp_path: Path) -> None:
    text = """
    @id("a") permit(principal == User::"ann", action, resource);
    @id("b") permit(principal == User::"bob", action == Action::"list", resource);
    @id("c") permit(principal in Group::"dev", action, resource in Namespace::"dev");
    @id("d") permit(principal in Group::"ops", action, resource) when { resource.resource == "nodes" };
    """
    asked = Attributes(UserInfo("somebody"), POD)
    assert provider(tmp_path, text).who_can(asked) == (
        Subject("User", "ann", via="a"),
        Subject("Group", "dev", via="c"),
    )
    everybody = provider(tmp_path, '@id("z") permit(principal, action, resource);').who_can(asked)
    assert [subject.name for subject in everybody] == ["system:authenticated", "system:unauthenticated"]


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ('permit(principal in Group::"dev", action == Action::"list", resource);', "its action is another"),
        ('permit(principal in Group::"dev", action, resource in Namespace::"prod");', "its resource is another"),
        ('permit(principal, action, resource) when { resource.name == "x" };', "its when or unless does not hold"),
        ('permit(principal in Group::"ops", action, resource);', "its principal is another"),
    ],
)
def test_an_explanation_names_the_closest_permit_and_the_part_that_failed(
    text: str, failed: str, tmp_path: Path
) -> None:
    explained = provider(tmp_path, f'@id("it") {text}').explain(Attributes(ALICE, POD))
    assert (explained.closest, explained.failed) == ("it", failed)


def test_the_remedy_is_a_policy_that_would_allow_it(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for what in [POD, SECRET, HEALTH, replace(POD, namespace="", resource="nodes")]:
        for name in ["alice", 'a"\\\nb', "é🔑"]:
            with subtests.test(what=what, name=name):
                tmp_path = tmp_path_factory.mktemp("case")
                question = Attributes(UserInfo(name), what)
                explained = provider(tmp_path, "").explain(question)
                assert (explained.closest, explained.failed) == ("", "there is no permit")
                assert provider(tmp_path, explained.remedy).decide(question).allowed


# --- in force ---


def test_a_changed_file_is_in_force_within_a_second(tmp_path: Path, clock: FakeClock) -> None:
    """S13, S44, S57: and at once for everything the gateway remembers."""
    found = provider(tmp_path, "permit(principal, action, resource);", clock=clock)
    authorizer = Authorizer([Link("cedar", found)], clock=clock)
    ruling = authorizer.decide(Attributes(ALICE, POD))
    assert ruling is not None
    (tmp_path / "more.cedar").write_text('forbid(principal == User::"alice", action, resource);')
    clock.advance(1)
    assert not authorizer.is_valid(ruling)
    decision = authorizer.decide(Attributes(ALICE, POD))
    assert decision is not None
    assert decision.verdict is Verdict.DENY


def test_settings_are_read_and_mistakes_told(tmp_path: Path) -> None:
    (tmp_path / "good.cedar").write_text("permit(principal, action, resource);")
    (tmp_path / "bad.cedar").write_text("\npermit(")

    def problems(text: str) -> list[str]:
        reading = ConfigReader(parse_yaml(text))
        CedarAuthorization.from_config(reading.root, Context(directory=tmp_path))
        return [str(problem) for problem in reading.problems]

    assert problems("{paths: [good.cedar], hide: true}") == []
    assert "bad.cedar:2" in problems("paths: [bad.cedar]")[0]
    assert "needs the files" in problems("{}")[0]


def test_the_catalog_finds_it() -> None:
    """S2."""
    assert load("authorization", "cedar") is CedarAuthorization
