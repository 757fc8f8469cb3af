"""What is said about names in a scope that Kubernetes does not have."""

from __future__ import annotations

import pytest

from ostiary.core.scopes import parse_scope
from ostiary.wire.resource_names import scope_notes


def test_what_looks_misspelt_or_is_more_than_it_seems_is_noted(subtests: pytest.Subtests) -> None:
    cases = [
        ("get deployments -n shop", 'did you mean "deployments.apps"?'),
        ("get pod -n shop", 'did you mean "pods"?'),
        ("gte pods -n shop", 'no request has the verb "gte": did you mean "get"?'),
        ("list /metrics", 'no request has the verb "list"'),
        ("get pods/web-1 -n shop", "the name of an object stands by itself"),
        ("get * -n shop", "includes secrets"),
    ]
    for scope, note in cases:
        with subtests.test(scope=scope, note=note):
            (said,) = scope_notes(parse_scope(scope))
            assert note in said


@pytest.mark.parametrize(
    "scope",
    [
        "get,list,watch pods,pods/log,deployments.apps/scale -n shop; discovery; get /metrics",
        "impersonate users --name bob -A; * pods -n shop; get */log -n shop; get widgets.example.com -n shop",
    ],
)
def test_what_kubernetes_has_is_not_noted(scope: str) -> None:
    assert scope_notes(parse_scope(scope)) == []
