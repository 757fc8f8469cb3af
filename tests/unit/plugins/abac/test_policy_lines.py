"""Which requests a line of an abac policy allows, to whom, exactly as Kubernetes evaluates it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import Attributes, RequestInfo, UserInfo
from tests.unit.plugins.abac.lines import KNOWN, allows, path, policies, resource, user, v1

# --- subjects ---


def test_whom_a_policy_names(subtests: pytest.Subtests) -> None:
    """A2: both set means both, neither means nobody, and a star means everybody who is known."""
    cases: list[tuple[dict[str, str], UserInfo, bool]] = [
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
    ]
    for spec, who, matches in cases:
        with subtests.test(spec=spec, who=who, matches=matches):
            assert allows(policies(v1(**spec, resource="*", namespace="*")), who, resource()) is matches


# --- verbs and resources ---


@pytest.mark.parametrize("verb", ["get", "list", "watch"])
def test_readonly_lets_reading_pass(verb: str) -> None:
    """A3."""
    found = policies(v1(user="a", resource="*", namespace="*", readonly=True))
    assert allows(found, user("a"), resource(verb))


def test_readonly_lets_nothing_else_pass(subtests: pytest.Subtests) -> None:
    """A3."""
    for verb in ["create", "update", "patch", "delete", "deletecollection", "GET", "escalate", ""]:
        with subtests.test(verb=verb):
            rule = {"user": "a", "resource": "*", "namespace": "*"}
            assert not allows(policies(v1(**rule, readonly=True)), user("a"), resource(verb))
            assert allows(policies(v1(**rule)), user("a"), resource(verb))


def test_subresources_and_names_do_not_matter() -> None:
    """A3."""
    found = policies(v1(user="a", resource="pods", namespace="*"))
    assert allows(found, user("a"), resource(subresource="exec"))
    assert allows(found, user("a"), replace(resource(), name="web", subresource="log"))


def test_resources_match_exactly_or_by_a_star(subtests: pytest.Subtests) -> None:
    """A4: an empty apiGroup is the core only; a star for the namespace includes the cluster's scope."""
    cases: list[tuple[dict[str, str], RequestInfo, bool]] = [
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
    ]
    for spec, what, matches in cases:
        with subtests.test(spec=spec, what=what, matches=matches):
            assert allows(policies(v1(user="a", **spec)), user("a"), what) is matches


def test_paths_match_exactly_or_by_a_trailing_star(subtests: pytest.Subtests) -> None:
    """A5."""
    cases = [
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
    ]
    for pattern, asked, matches in cases:
        with subtests.test(pattern=pattern, asked=asked, matches=matches):
            found = policies(v1(user="a", nonResourcePath=pattern, readonly=True))
            assert allows(found, user("a"), path("get", asked)) is matches
            assert not allows(found, user("a"), path("post", asked))


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
