"""How a scope is written, what it is read as, and how a mistake in it is reported."""

from __future__ import annotations

import pytest

from ostiary.core.policy_rules import DISCOVERY_PATHS
from ostiary.core.scopes import LONGEST_SCOPE, MOST_PIECES, ScopeRule, discovery_rule, parse_scope, scope_of_rules
from ostiary.errors import ScopeError


def test_a_rule_is_read(subtests: pytest.Subtests) -> None:
    cases = [
        ("get pods -n shop", ScopeRule(("get",), ("pods",), namespaces=("shop",))),
        ("list,get pods -n shop", ScopeRule(("get", "list"), ("pods",), namespaces=("shop",))),
        ("get,* pods -n b,a,b", ScopeRule(("*",), ("pods",), namespaces=("a", "b"))),
        ("-n shop get pods", ScopeRule(("get",), ("pods",), namespaces=("shop",))),
        ("get pods --namespace=shop", ScopeRule(("get",), ("pods",), namespaces=("shop",))),
        ("get nodes -A", ScopeRule(("get",), ("nodes",), namespaces=None)),
        ("get * --all-namespaces", ScopeRule(("get",), ("*",), namespaces=None)),
        (
            "get deployments.apps/scale --name web -n shop --upstream east",
            ScopeRule(("get",), ("deployments.apps/scale",), (), ("web",), ("shop",), ("east",)),
        ),
        ("get /metrics", ScopeRule(("get",), paths=("/metrics",))),
        ("get /healthz/*,/a --upstream east", ScopeRule(("get",), paths=("/a", "/healthz/*"), upstreams=("east",))),
        ("discovery", discovery_rule()),
        ("discovery --upstream east", discovery_rule(("east",))),
    ]
    for text, rule in cases:
        with subtests.test(text=text, rule=rule):
            assert parse_scope(text).rules == (rule,)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  list,get   pods  --namespace shop ", "get,list pods -n shop"),
        ("get pods -n b ;discovery; get pods -n b", "discovery; get pods -n b"),
        ("get,* */log,pods --name=b,a --all-namespaces", "* */log,pods --name a,b -A"),
        (f"get {','.join(reversed(DISCOVERY_PATHS))}", f"get {','.join(DISCOVERY_PATHS)}"),
    ],
)
def test_equal_scopes_have_one_text(text: str, canonical: str) -> None:
    scope = parse_scope(text)
    assert str(scope) == canonical
    assert parse_scope(canonical) == scope


def test_a_mistake_is_refused_with_its_cause_its_place_and_a_hint(subtests: pytest.Subtests) -> None:
    cases = [
        ("", "a rule is empty", "as in"),
        ("get pods -n shop;", "a rule is empty", "as in"),
        ("get", "a rule consists of verbs and resources", "as in"),
        ("get pods web -n shop", 'of verbs and paths: "web"', "as in"),
        ("get pods", "names no namespace", "-A"),
        ("get pods -n shop -A", "-n and -A cannot be combined", "leave out"),
        ("get pods -n", 'has no value: "-n"', "as in"),
        ("get pods -n -A", 'has no value: "-n"', "as in"),
        ("get pods -A --name web,-web", 'begins with a dash: "-web"', "there are -n, -A"),
        ("get pods --namespace=shop,--all", 'begins with a dash: "--all"', "there are -n, -A"),
        ("get /metrics --upstream=east,-east", 'begins with a dash: "-east"', "there are -n, -A"),
        ("get pods -n shop -n web", 'duplicate option: "-n"', "-n a,b"),
        ("get pods -n *", 'a namespace cannot be a pattern: "*"', "-A"),
        ("get pods -n shop -q", 'unknown option: "-q"', "--upstream"),
        ("get pods, -n shop", 'an empty entry: "pods,"', "a,b"),
        ("get, list pods -n shop", 'an empty entry: "get,"', "a,b"),
        ("GET pods -n shop", 'not a verb: "GET"', "lower case"),
        ("get Pods -n shop", 'not a resource: "Pods"', "plural"),
        ("get pods/a/b -n shop", 'not a resource: "pods/a/b"', "plural"),
        ("get pods/* -n shop", 'a subresource cannot be a pattern: "pods/*"', "pods/log"),
        ("get pods,/metrics -n shop", 'resources and paths cannot be in one rule: "pods"', "two rules"),
        ("get /metrics -n shop", "takes no namespace", "leave out"),
        ("get /metrics --name a", "takes no namespace", "leave out"),
        ("get /a*b", 'only at the end of a path: "/a*b"', "as in"),
        ("discovery -n shop", "takes no namespace", "leave out"),
        ("get po\x1bds -n shop", "invalid character", "as in"),
        ("get pods -n 'shop'", "invalid character", "as in"),
    ]
    for text, cause, hint in cases:
        with subtests.test(text=text, cause=cause, hint=hint):
            with pytest.raises(ScopeError) as caught:
                parse_scope(text)
            error = caught.value
            assert cause in (error.cause or "")
            assert hint in (error.hint or "")
            assert str(error.where).startswith(f"rule {text.count(';') + 1}, ")
            assert error.code == "scope-invalid"
            assert "\x1b" not in str(error)


def test_a_scope_is_bounded_in_length_and_in_what_it_lists() -> None:
    with pytest.raises(ScopeError, match="too long"):
        parse_scope("get pods -n " + "a" * LONGEST_SCOPE)
    names = [f"n{number}" for number in range(MOST_PIECES // 2)]
    parse_scope(f"get,list pods -n {','.join(names)}")
    with pytest.raises(ScopeError, match="too large"):
        parse_scope(f"get,list pods -n {','.join(names)}; discovery")


def test_rules_about_resources_come_with_the_discovery_that_clients_need(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], bool, str]] = [
        (["get pods -n shop"], False, "discovery; get pods -n shop"),
        (["get pods -n shop", "list pods -A"], True, "get pods -n shop; list pods -A"),
        (["get /metrics"], False, "get /metrics"),
        (["discovery", "get pods -A"], False, "discovery; get pods -A"),
        (
            ["get pods -A --upstream west", "get pods -A --upstream east,west", "get /metrics"],
            False,
            "discovery --upstream east,west; get /metrics; get pods -A --upstream east,west;"
            " get pods -A --upstream west",
        ),
        (
            ["get pods -A --upstream west", "get secrets -A"],
            False,
            "discovery; get pods -A --upstream west; get secrets -A",
        ),
    ]
    for rules, exact, text in cases:
        with subtests.test(rules=rules, exact=exact, text=text):
            assert str(scope_of_rules(rules, exact=exact)) == text
