"""ABAC exactly as Kubernetes evaluates it; the cases are those of its own tests, in our words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.catalog import Context, load
from ostiary.core.config import Reading
from ostiary.core.config import parse as parse_yaml
from ostiary.errors import ConfigurationError
from ostiary.gateway.authorize.cached_provider import Link
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.interfaces.authorization import NonResourceRule, ResourceRule, Subject
from ostiary.model import Attributes, RequestInfo, UserInfo, Verdict
from ostiary.plugins.abac.authorization import AbacAuthorization
from ostiary.plugins.abac.policy_lines import PolicyLines
from ostiary.plugins.abac.reading import API_VERSION, parse
from ostiary.plugins.common.policy_files import PolicyText
from ostiary.testing import FakeClock

KNOWN = "system:authenticated"


def v1(**spec: Any) -> str:
    return json.dumps({"apiVersion": API_VERSION, "kind": "Policy", "spec": spec})


def v0(**fields: Any) -> str:
    return json.dumps(fields)


def policies(*lines: str) -> PolicyLines:
    return parse([PolicyText("policy.jsonl", "\n".join(lines))])


def provider(tmp_path: Path, *lines: str, **options: Any) -> AbacAuthorization:
    file = tmp_path / "policy.jsonl"
    file.write_text("\n".join(lines))
    return AbacAuthorization([file], **options)


def user(name: str, *groups: str) -> UserInfo:
    return UserInfo(name, groups=groups)


def resource(verb: str = "get", name: str = "pods", namespace: str = "", group: str = "", **more: Any) -> RequestInfo:
    return RequestInfo(verb, "", "", True, api_group=group, resource=name, namespace=namespace, **more)


def path(verb: str, text: str) -> RequestInfo:
    return RequestInfo(verb, verb.upper(), text)


def allows(found: PolicyLines, who: UserInfo, what: RequestInfo) -> bool:
    return any(policy.allows(what) for policy in found.of(who))


# --- lines ---


def test_blank_lines_and_comments_do_not_count() -> None:
    """A1."""
    found = policies("# a comment", "", "   ", "\t# another", v1(user="a"), v0(user="b") + "\r")
    assert [(policy.user, policy.place.line) for policy in found.all] == [("a", 5), ("b", 6)]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "nonsense",
        '{"user": 7}',
        '{"user": "a"} {"user": "b"}',
        '{"user": "a", "verb": "get"}',
        '{"readonly": "true"}',
        '{"apiVersion": "abac.authorization.kubernetes.io/v9", "kind": "Policy", "spec": {}}',
        f'{{"apiVersion": "{API_VERSION}", "kind": "Pod", "spec": {{}}}}',
        f'{{"apiVersion": "{API_VERSION}", "kind": "Policy"}}',
        f'{{"kind": "Policy", "apiVersion": "{API_VERSION}", "spec": {{"user": "a", "resourceName": "x"}}}}',
        f'{{"apiVersion": "{API_VERSION}", "user": "a"}}',
    ],
)
def test_a_mistake_is_told_with_file_and_line(line: str) -> None:
    """A1, T7: a field that we do not know was meant to restrict, so it is a mistake too."""
    with pytest.raises(ConfigurationError) as caught:
        policies(v1(user="a"), "", line, "{")
    assert [str(problem.place) for problem in caught.value.problems] == ["policy.jsonl:3", "policy.jsonl:4"]


def test_a_line_separator_inside_a_string_does_not_end_the_line() -> None:
    """A1, S14."""
    assert policies('{"user": "a\u2028b"}').all[0].user == "a\u2028b"


# --- subjects ---


@pytest.mark.parametrize(
    ("spec", "who", "matches"),
    [
        ({"user": "alice"}, user("alice"), True),
        ({"user": "alice"}, user("Alice"), False),
        ({"user": "alice"}, user("alice2"), False),
        ({"user": "alice"}, user("bob", "alice"), False),
        ({"group": "dev"}, user("alice", "dev"), True),
        ({"group": "dev"}, user("dev"), False),
        ({"group": "dev"}, user("alice", "developers"), False),
        ({"user": "alice", "group": "dev"}, user("alice", "dev"), True),
        ({"user": "alice", "group": "dev"}, user("alice"), False),
        ({"user": "alice", "group": "dev"}, user("bob", "dev"), False),
        ({}, user("alice", KNOWN), False),
        ({}, user(""), False),
        ({"user": "*"}, user("alice", KNOWN), True),
        ({"user": "*"}, user("alice"), True),
        ({"group": "*"}, user("alice", KNOWN), True),
        ({"user": "*"}, user("system:anonymous", "system:unauthenticated"), False),
        ({"group": "*"}, user("system:anonymous", "system:unauthenticated"), False),
        ({"user": "*"}, user("", "dev"), False),
        ({"user": "*", "group": "dev"}, user("bob", KNOWN), True),
        ({"user": "alice", "group": "*"}, user("bob", KNOWN), True),
    ],
)
def test_whom_a_policy_names(spec: dict[str, str], who: UserInfo, matches: bool) -> None:
    """A2: both set means both, neither means nobody, and a star means everybody who is known."""
    assert allows(policies(v1(**spec, resource="*", namespace="*")), who, resource()) is matches


# --- verbs and resources ---


@pytest.mark.parametrize("verb", ["get", "list", "watch"])
def test_readonly_lets_reading_pass(verb: str) -> None:
    """A3."""
    found = policies(v1(user="a", resource="*", namespace="*", readonly=True))
    assert allows(found, user("a"), resource(verb))


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete", "deletecollection", "GET", "escalate", ""])
def test_readonly_lets_nothing_else_pass(verb: str) -> None:
    """A3."""
    rule = {"user": "a", "resource": "*", "namespace": "*"}
    assert not allows(policies(v1(**rule, readonly=True)), user("a"), resource(verb))
    assert allows(policies(v1(**rule)), user("a"), resource(verb))


def test_subresources_and_names_do_not_matter() -> None:
    """A3."""
    found = policies(v1(user="a", resource="pods", namespace="*"))
    assert allows(found, user("a"), resource(subresource="exec"))
    assert allows(found, user("a"), replace(resource(), name="web", subresource="log"))


@pytest.mark.parametrize(
    ("spec", "what", "matches"),
    [
        ({"namespace": "*", "resource": "pods"}, resource(namespace="x"), True),
        ({"namespace": "*", "resource": "pods"}, resource(namespace=""), True),
        ({"namespace": "x", "resource": "*"}, resource(namespace="x"), True),
        ({"namespace": "x", "resource": "*"}, resource(namespace="xx"), False),
        ({"namespace": "x", "resource": "*"}, resource(namespace=""), False),
        ({"namespace": "", "resource": "*"}, resource(namespace=""), True),
        ({"namespace": "", "resource": "*"}, resource(namespace="x"), False),
        ({"namespace": "*", "resource": "pod"}, resource(), False),
        ({"namespace": "*", "resource": "Pods"}, resource(), False),
        ({"namespace": "*", "resource": "*"}, resource(group=""), True),
        ({"namespace": "*", "resource": "*"}, resource(group="apps"), False),
        ({"namespace": "*", "resource": "*", "apiGroup": "apps"}, resource(group="apps"), True),
        ({"namespace": "*", "resource": "*", "apiGroup": "apps"}, resource(group=""), False),
        ({"namespace": "*", "resource": "*", "apiGroup": "*"}, resource(group="apps"), True),
        ({"namespace": "*", "resource": "*", "apiGroup": "*"}, resource(group=""), True),
        ({"namespace": "*", "resource": "*", "apiGroup": "*"}, path("get", "/api"), False),
        ({"nonResourcePath": "*"}, resource(), False),
        ({"nonResourcePath": "*"}, resource(name=""), False),
    ],
)
def test_resources_match_exactly_or_by_a_star(spec: dict[str, str], what: RequestInfo, matches: bool) -> None:
    """A4: an empty apiGroup is the core only; a star for the namespace includes the cluster's scope."""
    assert allows(policies(v1(user="a", **spec)), user("a"), what) is matches


@pytest.mark.parametrize(
    ("pattern", "asked", "matches"),
    [
        ("*", "/anything", True),
        ("/api", "/api", True),
        ("/api", "/api/", False),
        ("/api", "/apis", False),
        ("/API", "/api", False),
        ("/root/*", "/root/", True),
        ("/root/*", "/root/a/b", True),
        ("/root/*", "/root", False),
        ("/root*", "/rooted", True),
        ("/root**", "/rooted", True),
        ("/a*b", "/axb", False),
        ("", "", False),
    ],
)
def test_paths_match_exactly_or_by_a_trailing_star(pattern: str, asked: str, matches: bool) -> None:
    """A5."""
    found = policies(v1(user="a", nonResourcePath=pattern, readonly=True))
    assert allows(found, user("a"), path("get", asked)) is matches
    assert not allows(found, user("a"), path("post", asked))


# --- the form before v1beta1 ---


@pytest.mark.parametrize(
    ("fields", "who", "what", "matches"),
    [
        ({}, user("anybody"), resource("delete", namespace="x", group="apps"), True),
        ({}, user("anybody"), path("get", "/x"), True),
        ({}, user("system:anonymous", "system:unauthenticated"), resource(), False),
        ({"user": "*"}, user("anybody"), resource(), True),
        ({"user": "a"}, user("a"), path("post", "/x"), True),
        ({"user": "a"}, user("b"), path("post", "/x"), False),
        ({"user": "a", "readonly": True}, user("a"), resource("create"), False),
        ({"user": "a", "namespace": "x"}, user("a"), resource(namespace="x", group="apps"), True),
        ({"user": "a", "namespace": "x"}, user("a"), resource(namespace="y"), False),
        ({"user": "a", "namespace": "x"}, user("a"), path("get", "/x"), False),
        ({"user": "a", "resource": "pods"}, user("a"), resource(namespace="y"), True),
        ({"user": "a", "resource": "pods"}, user("a"), path("get", "/x"), False),
        ({"group": "g", "resource": "pods"}, user("a", "g"), resource(), True),
    ],
)
def test_lines_without_a_version_are_read_as_they_were(
    fields: dict[str, Any], who: UserInfo, what: RequestInfo, matches: bool
) -> None:
    """A6: what is empty means everything."""
    assert allows(policies(v0(**fields)), who, what) is matches


# --- Kubernetes' own stories ---

STORY = (
    v1(user="scheduler", readonly=True, resource="pods", namespace="*"),
    v1(user="scheduler", resource="bindings", namespace="*"),
    v1(user="kubelet", readonly=True, resource="*", namespace="*"),
    v1(user="alice", resource="*", namespace="projectCaribou", apiGroup="*"),
    v1(user="chuck", readonly=True, nonResourcePath="/api"),
    v1(user="chuck", nonResourcePath="/custom"),
    v1(user="chuck", nonResourcePath="/root/*"),
    v1(user="noresource", nonResourcePath="*"),
)


@pytest.mark.parametrize(
    ("name", "what", "matches"),
    [
        ("scheduler", resource("list"), True),
        ("scheduler", resource("list", namespace="x"), True),
        ("scheduler", resource("create"), False),
        ("scheduler", resource("create", "bindings", "x"), True),
        ("kubelet", resource("get", "services", "x"), True),
        ("kubelet", resource("update", "nodes"), False),
        ("alice", resource("create", "pods", "projectCaribou"), True),
        ("alice", resource("create", "pods", "other"), False),
        ("alice", resource("get", "nodes"), False),
        ("chuck", path("get", "/api"), True),
        ("chuck", path("post", "/api"), False),
        ("chuck", path("post", "/custom"), True),
        ("chuck", path("get", "/root/"), True),
        ("chuck", path("get", "/root"), False),
        ("chuck", path("get", "/"), False),
        ("noresource", path("delete", "/anything"), True),
        ("noresource", resource("get"), False),
        ("debbie", path("get", "/api"), False),
    ],
)
def test_the_stories_of_kubernetes(name: str, what: RequestInfo, matches: bool, tmp_path: Path) -> None:
    """A2, A3, A4, A5, A7."""
    decision = provider(tmp_path, *STORY).decide(Attributes(user(name), what))
    assert decision.verdict is (Verdict.ALLOW if matches else Verdict.NO_OPINION)
    if not matches:
        assert decision.reason == "No policy matched."


def test_an_allowing_decision_names_file_and_line(tmp_path: Path) -> None:
    decision = provider(tmp_path, "# one", *STORY).decide(
        Attributes(user("alice"), resource(namespace="projectCaribou"))
    )
    assert decision.reason == f"ABAC: allowed by {tmp_path / 'policy.jsonl'}:5"


@pytest.mark.parametrize(
    ("name", "what", "hidden"),
    [
        ("bob", resource(namespace="dev"), True),
        ("alice", resource("delete", namespace="dev"), False),
        ("alice", resource(namespace="prod"), True),
        ("bob", resource("get", "nodes"), False),
        ("bob", path("get", "/x"), False),
        ("chuck", resource(namespace="dev"), True),
    ],
)
def test_who_has_nothing_in_a_namespace_is_not_told_of_it(
    name: str, what: RequestInfo, hidden: bool, tmp_path: Path
) -> None:
    """S54, S55: 404 without any permission there, 403 with some."""
    rules = (v1(user="alice", namespace="dev", resource="pods", readonly=True), v1(user="chuck", nonResourcePath="*"))
    assert provider(tmp_path, *rules).decide(Attributes(user(name), what)).hidden is hidden


# --- telling ---


def test_rules_are_listed_as_kubernetes_lists_them(tmp_path: Path) -> None:
    """A7: readonly is get, list and watch, else a star."""
    found = provider(
        tmp_path,
        v1(group="dev", namespace="x", resource="pods", readonly=True),
        v1(user="alice", namespace="*", resource="*", apiGroup="*"),
        v1(user="alice", namespace="y", resource="secrets"),
        v1(user="alice", nonResourcePath="/metrics", readonly=True),
        v1(user="bob", namespace="x", resource="*"),
    ).rules_for(user("alice", "dev"), "x")
    reading = ("get", "list", "watch")
    assert set(found.resource_rules) == {ResourceRule(reading, ("",), ("pods",)), ResourceRule(("*",), ("*",), ("*",))}
    assert found.non_resource_rules == (NonResourceRule(reading, ("/metrics",)),)
    assert not found.incomplete


async def test_relevant_groups_are_those_the_policy_names(tmp_path: Path) -> None:
    """S35: not those that everybody is in by being known."""
    found = provider(tmp_path, v1(group="dev"), v1(user="a", group="ops"), v1(user="*"), v0(), v1(user="b"))
    assert await found.relevant_groups() == {"dev", "ops"}


def test_who_can_lists_the_subjects_and_their_lines(tmp_path: Path) -> None:
    found = provider(
        tmp_path,
        v1(user="a", resource="pods", namespace="*"),
        v1(group="g", resource="*", namespace="*"),
        v1(user="b", group="h", resource="*", namespace="*"),
        v1(user="c", resource="nodes"),
        v1(resource="*", namespace="*"),
    )
    file = tmp_path / "policy.jsonl"
    assert found.who_can(Attributes(user("x"), resource(namespace="n"))) == (
        Subject("User", "a", via=f"{file}:1"),
        Subject("Group", "g", via=f"{file}:2"),
        Subject("User", "b", via=f'{file}:3, if in group "h"'),
    )


@pytest.mark.parametrize(
    ("what", "closest", "failed"),
    [
        (resource("delete", namespace="dev"), 1, "it is readonly"),
        (resource(namespace="prod"), 1, 'its namespace is "dev"'),
        (resource(namespace="dev", group="apps"), 1, 'its apiGroup is ""'),
        (resource("get", "secrets", namespace="ops"), 2, 'it names user "bob" and group "ops"'),
    ],
)
def test_an_explanation_names_the_closest_line_and_what_failed(
    what: RequestInfo, closest: int, failed: str, tmp_path: Path
) -> None:
    found = provider(
        tmp_path,
        v1(user="alice", namespace="dev", resource="pods", readonly=True),
        v1(user="bob", group="ops", namespace="ops", resource="secrets"),
    )
    explained = found.explain(Attributes(user("alice"), what))
    assert explained.closest == f"{tmp_path / 'policy.jsonl'}:{closest}"
    assert explained.failed == failed


@pytest.mark.parametrize("what", [resource("delete", namespace="dev", group="apps"), path("get", "/x y"), resource()])
def test_the_remedy_is_a_line_that_would_allow_it(what: RequestInfo, tmp_path: Path) -> None:
    question = Attributes(user('al"ice'), what)
    explained = provider(tmp_path).explain(question)
    assert explained.failed == "no policy names this user or one of the user's groups"
    assert provider(tmp_path, explained.remedy).decide(question).allowed


# --- in force ---


def test_a_changed_file_is_in_force_within_a_second(tmp_path: Path, clock: FakeClock) -> None:
    """S13, S44, S57: and at once for everything the gateway remembers."""
    found = provider(tmp_path, v1(user="alice", resource="*", namespace="*"), clock=clock)
    authorizer = Authorizer([Link("abac", found)], clock=clock, hide_denied=True)
    question = Attributes(user("alice"), resource(namespace="dev"))
    ruling = authorizer.decide(question)
    assert ruling is not None
    assert ruling.allowed
    (tmp_path / "policy.jsonl").write_text("")
    clock.advance(0.9)
    assert authorizer.still_holds(ruling)
    clock.advance(0.1)
    assert not authorizer.still_holds(ruling)
    decision = authorizer.decide(question)
    assert decision is not None
    assert (decision.allowed, decision.hidden) == (False, True)


def test_many_policies_for_others_are_not_looked_at() -> None:
    """The cost of a decision is that of the user's own lines."""
    found = policies(*(v1(user=f"user-{number}", resource="*", namespace="*") for number in range(1000)), v1(user="me"))
    assert [policy.user for policy in found.of(user("me", "g"))] == ["me"]


# --- settings ---


def from_yaml(text: str, directory: Path) -> list[str]:
    reading = Reading(parse_yaml(text))
    AbacAuthorization.from_config(reading.root, Context(directory=directory))
    return [str(problem) for problem in reading.problems]


def test_settings_are_read_and_mistakes_told(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text(v1(user="a"))
    (tmp_path / "bad.jsonl").write_text("\n{")
    assert from_yaml("paths: [good.jsonl]", tmp_path) == []
    assert "needs the files" in from_yaml("{}", tmp_path)[0]
    (problem,) = from_yaml("paths: [bad.jsonl]", tmp_path)
    assert "bad.jsonl:2" in problem
    assert "absent" in from_yaml("paths: [absent]", tmp_path)[0]


def test_the_catalog_finds_it() -> None:
    """S2: pluggable, and ours like anybody's."""
    assert load("authorization", "abac") is AbacAuthorization


# --- against a plain reading of the rules ---

names = st.sampled_from(["", "a", "b", "*"])
groups = st.sampled_from(["", "g", "h", "*"])
specs = st.fixed_dictionaries(
    {
        "user": names,
        "group": groups,
        "readonly": st.booleans(),
        "apiGroup": names,
        "resource": names,
        "namespace": names,
        "nonResourcePath": st.sampled_from(["", "/a", "/a*", "*"]),
    }
)
questions = st.builds(
    Attributes,
    st.builds(UserInfo, st.sampled_from(["a", "b", ""]), groups=st.sets(st.sampled_from(["g", "h"])).map(tuple)),
    st.builds(
        RequestInfo,
        verb=st.sampled_from(["get", "create"]),
        method=st.just(""),
        path=st.sampled_from(["/a", "/ab", "/b"]),
        is_resource=st.booleans(),
        api_group=st.sampled_from(["", "a"]),
        namespace=st.sampled_from(["", "a"]),
        resource=st.sampled_from(["a", "b"]),
    ),
)


def by_the_book(spec: dict[str, Any], asked: Attributes) -> bool:
    """The rules A2 to A5, line by line and without an index."""
    who, what = asked.user, asked.request
    wanted, group = spec["user"], spec["group"]
    if "*" in (wanted, group):
        wanted, group = "", KNOWN
    mine = (*who.groups, KNOWN) if who.username else who.groups
    if not wanted and not group:
        return False
    if (wanted and wanted != who.username) or (group and group not in mine):
        return False
    if spec["readonly"] and what.verb not in ("get", "list", "watch"):
        return False
    if not what.is_resource:
        pattern = spec["nonResourcePath"]
        return what.path == pattern or (pattern.endswith("*") and what.path.startswith(pattern[:-1]))
    pairs = (("namespace", what.namespace), ("resource", what.resource), ("apiGroup", what.api_group))
    return all(spec[key] in ("*", value) for key, value in pairs)


@settings(max_examples=80, deadline=None)
@given(st.lists(specs, max_size=5), st.lists(questions, min_size=1, max_size=5))
def test_the_index_decides_as_the_book_does(rules: list[dict[str, Any]], asked: list[Attributes]) -> None:
    """A2, A3, A4, A5."""
    found = policies(*(v1(**rule) for rule in rules))
    for question in asked:
        assert allows(found, question.user, question.request) is any(by_the_book(rule, question) for rule in rules)
