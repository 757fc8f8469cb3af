"""Abac policy files as Kubernetes reads them; the cases are those of its own tests, in our words."""

from __future__ import annotations

from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary.model import RequestInfo, UserInfo
from ostiary.plugins.abac.reading import API_VERSION
from tests.unit.plugins.abac.lines import allows, path, policies, resource, user, v0, v1


def test_blank_lines_and_comments_do_not_count() -> None:
    """A1."""
    found = policies("# a comment", "", "   ", "\t# another", v1(user="a"), v0(user="b") + "\r")
    assert [(policy.user, policy.place.line) for policy in found.all] == [("a", 5), ("b", 6)]


def test_a_mistake_is_told_with_file_and_line(subtests: pytest.Subtests) -> None:
    """A1, T7: a field that we do not know was meant to restrict, so it is a mistake too."""
    cases = [
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
    ]
    for line in cases:
        with subtests.test(line=line):
            with pytest.raises(ConfigurationError) as caught:
                policies(v1(user="a"), "", line, "{")
            assert [str(problem.place) for problem in caught.value.problems] == ["policy.jsonl:3", "policy.jsonl:4"]


def test_a_line_separator_inside_a_string_does_not_end_the_line() -> None:
    """A1, S14."""
    assert policies('{"user": "a\u2028b"}').all[0].user == "a\u2028b"


# --- the form before v1beta1 ---


def test_lines_without_a_version_are_read_as_they_were(subtests: pytest.Subtests) -> None:
    """A6: what is empty means everything."""
    cases: list[tuple[dict[str, Any], UserInfo, RequestInfo, bool]] = [
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
    ]
    for fields, who, what, matches in cases:
        with subtests.test(fields=fields, who=who, what=what, matches=matches):
            assert allows(policies(v0(**fields)), who, what) is matches
