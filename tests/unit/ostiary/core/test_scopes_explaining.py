"""Why a scope does not have a request."""

from __future__ import annotations

import pytest

from ostiary.core.scopes import ScopeMiss, explain_miss, parse_scope, rule_for
from tests.unit.ostiary.core.scopes import asked

SCOPE = parse_scope("get,list pods -n shop; get pods/log --name web-1 -n shop; get /metrics --upstream main")


def test_the_closest_rule_and_what_fails_of_it_are_told(subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], str, str, str]] = [
        (("list", "pods", "web"), "get,list pods -n shop", "namespace", "list pods -n web"),
        (("delete", "pods", "shop", "a"), "get,list pods -n shop", "verb", "delete pods --name a -n shop"),
        (("get", "secrets", "shop"), "get,list pods -n shop", "resource", "get secrets -n shop"),
        (("list", "pods", ""), "get,list pods -n shop", "namespace", "list pods -A"),
        (
            *(("get", "pods/log", "shop", "web-2"), "get pods/log --name web-1 -n shop", "name"),
            "get pods/log --name web-2 -n shop",
        ),
        (("get", "/healthz"), "get /metrics --upstream main", "path", "get /healthz"),
        (("post", "/metrics"), "get /metrics --upstream main", "verb", "post /metrics"),
        (
            *(("create", "deployments.apps", "web"), "get pods/log --name web-1 -n shop"),
            *("namespace, resource, verb, name", "create deployments.apps -n web"),
        ),
    ]
    for question, closest, failed, wanted in cases:
        with subtests.test(question=question, closest=closest, failed=failed, wanted=wanted):
            request = asked(*question).request
            miss = explain_miss(SCOPE, request)
            assert miss.remedy == f'a token with: --can "{wanted} --upstream main"'
            if failed.count(",") < 3:
                assert miss == ScopeMiss(closest, failed, miss.remedy)


def test_another_upstream_is_told() -> None:
    miss = explain_miss(SCOPE, asked("get", "/metrics", upstream="west").request)
    assert (miss.closest, miss.failed) == ("get /metrics --upstream main", "upstream")


def test_of_a_scope_about_other_things_no_rule_is_close() -> None:
    miss = explain_miss(parse_scope("discovery"), asked("get", "pods", "shop").request)
    assert (miss.closest, miss.failed) == ("", "")


@pytest.mark.parametrize(
    "question",
    [
        ("get", "pods", "shop", "a"),
        ("create", "deployments.apps/scale", "shop"),
        ("list", "nodes"),
        ("get", "/metrics"),
    ],
)
def test_the_rule_to_ask_for_allows_the_request(question: tuple[str, ...]) -> None:
    request = asked(*question).request
    assert parse_scope(str(rule_for(request))).allows(request)
