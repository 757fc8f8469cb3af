"""The abac provider: what it decides, tells and lists, and when a changed file counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.core.catalog import Context, load
from ostiary.core.config import Reading
from ostiary.core.config import parse as parse_yaml
from ostiary.gateway.authorize.cached_provider import Link
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.interfaces.authorization import Grant, NonResourceRule, ResourceRule, Subject
from ostiary.model import Attributes, RequestInfo, Verdict
from ostiary.plugins.abac.authorization import AbacAuthorization
from ostiary.testing import FakeClock
from tests.unit.plugins.abac.lines import path, policies, provider, resource, user, v0, v1

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


def test_the_stories_of_kubernetes(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A2, A3, A4, A5, A7."""
    cases = [
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
    ]
    for name, what, matches in cases:
        with subtests.test(name=name, what=what, matches=matches):
            tmp_path = tmp_path_factory.mktemp("case")
            decision = provider(tmp_path, *STORY).decide(Attributes(user(name), what))
            assert decision.verdict is (Verdict.ALLOW if matches else Verdict.NO_OPINION)
            if not matches:
                assert decision.reason == "No policy matched."


def test_an_allowing_decision_names_file_and_line(tmp_path: Path) -> None:
    decision = provider(tmp_path, "# one", *STORY).decide(
        Attributes(user("alice"), resource(namespace="projectCaribou"))
    )
    assert decision.reason == f"ABAC: allowed by {tmp_path / 'policy.jsonl'}:5"


def test_who_has_nothing_in_a_namespace_is_not_told_of_it(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S54, S55: 404 without any permission there, 403 with some."""
    cases = [
        ("bob", resource(namespace="dev"), True),
        ("alice", resource("delete", namespace="dev"), False),
        ("alice", resource(namespace="prod"), True),
        ("bob", resource("get", "nodes"), False),
        ("bob", path("get", "/x"), False),
        ("chuck", resource(namespace="dev"), True),
    ]
    for name, what, hidden in cases:
        with subtests.test(name=name, what=what, hidden=hidden):
            tmp_path = tmp_path_factory.mktemp("case")
            rules = (
                v1(user="alice", namespace="dev", resource="pods", readonly=True),
                v1(user="chuck", nonResourcePath="*"),
            )
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


def test_each_line_that_somebody_has_by_name_is_a_grant(tmp_path: Path) -> None:
    pods = {"resource": "pods", "namespace": "team", "apiGroup": ""}
    abac = provider(
        tmp_path,
        v1(user="alice", readonly=True, **pods),
        v1(group="dev", nonResourcePath="/x"),
        v1(user="bob", group="dev", **pods),
        v1(**pods),
    )
    path = tmp_path / "policy.jsonl"
    reading = ResourceRule(("get", "list", "watch"), ("",), ("pods",))
    assert abac.grants() == (
        Grant(Subject("User", "alice", via=f"{path}:1"), reading, "team", subresources=True),
        Grant(Subject("Group", "dev", via=f"{path}:2"), NonResourceRule(("*",), ("/x",))),
    )
