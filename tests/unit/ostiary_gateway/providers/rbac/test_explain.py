"""The operator learns which rule allowed something, or which one came closest and what it lacked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostiary.model import Place
from tests.unit.ostiary_gateway.providers.rbac.policies import (
    ask,
    ask_path,
    bind,
    cluster_role,
    rbac,
    read,
    role,
    rule,
    urls,
)

PODS = rule("get list", "core", "pods")


def test_an_allowed_request_is_explained_by_its_binding_role_and_rule() -> None:
    """Idea 2, R2."""
    explained = rbac(cluster_role("r", urls("get", "/a"), PODS), bind("r", "User:alice")).explain(
        ask("get", "pods", "ns1")
    )
    assert explained.decision.allowed
    assert explained.closest == (
        'ClusterRoleBinding "bind-r" of ClusterRole "r", rule "get", "list" on "pods" of API group ""'
    )
    assert (explained.failed, explained.remedy) == ("", "")


def test_the_place_in_the_file_is_named() -> None:
    """Idea 2."""
    text = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: r}
rules:
- {verbs: [get], apiGroups: [""], resources: [pods]}
"""
    found = read(text).roles[0].rules[0]
    placed = replace(found, place=Place("a.yaml", "rules[0]", 5))
    explained = rbac(cluster_role("r", placed), bind("r", "User:alice")).explain(ask("get", "pods"))
    assert explained.closest.endswith("(a.yaml:5, rules[0])")


def test_masters_need_no_rule() -> None:
    """R10."""
    explained = rbac().explain(ask("get", "pods", groups=("system:masters",)))
    assert explained.decision.allowed
    assert explained.closest == 'Group "system:masters"'


def test_a_refusal_names_the_one_condition_that_failed(subtests: pytest.Subtests) -> None:
    """Idea 2: even where somebody else may do everything."""
    cases = [
        (ask("delete", "pods", "ns1", "web"), 'verb: the rule allows "get", "list" and not "delete"'),
        (ask("get", "pods", "ns1", group="apps"), 'apiGroup: the rule is for "" and not for "apps"'),
        (ask("get", "services", "ns1"), 'resource: the rule is for "pods" and not for "services"'),
        (ask("get", "pods/log", "ns1", "web"), 'subresource: the rule is for "pods" and not for "pods/log"'),
        (ask("get", "pods", "ns2"), 'namespace: the binding is for "ns1", and the request is in "ns2"'),
        (ask("get", "pods"), 'namespace: the binding is for "ns1", and the request is in no namespace'),
        (
            ask("get", "pods", "ns1", user="bob"),
            'subject: the binding is for User "alice", Group "devs" and not for User "bob"',
        ),
        (
            ask("get", "secrets", "ns1", "two", groups=("ops",)),
            'resourceName: the rule is for objects named "one", and not "two"',
        ),
        (
            ask("get", "secrets", "ns1", groups=("ops",)),
            'resourceName: the rule is for objects named "one", and the request names no object',
        ),
        (ask_path("get", "/b", groups=("web",)), 'path: the rule is for "/a" and not for "/b"'),
        (ask("get", "jobs", "ns3", groups=("gone",)), 'role: ClusterRole "missing" does not exist'),
    ]
    for attributes, failed in cases:
        with subtests.test(attributes=attributes, failed=failed):
            provider = rbac(
                cluster_role("all", rule("*", "*", "*"), urls("*", "*")),
                role("r", "ns1", PODS),
                cluster_role("named", rule("get", "core", "secrets", "one")),
                cluster_role("paths", urls("get", "/a")),
                bind("all", "Group:system:masters"),
                bind("r", "User:alice", "Group:devs", namespace="ns1", role_kind="Role"),
                bind("named", "Group:ops"),
                bind("paths", "Group:web"),
                bind("missing", "Group:gone", namespace="ns3"),
            )
            explained = provider.explain(attributes)
            assert not explained.decision.allowed
            assert explained.failed == failed


def test_of_two_near_rules_the_users_own_is_told() -> None:
    """Idea 2: a rule for somebody else that fits is further away than one's own that lacks a verb."""
    provider = rbac(
        cluster_role("mine", rule("get", "core", "pods")),
        cluster_role("theirs", rule("delete", "core", "pods")),
        bind("theirs", "User:bob"),
        bind("mine", "User:alice"),
    )
    assert 'ClusterRole "mine"' in provider.explain(ask("delete", "pods", "ns1")).closest
    assert 'ClusterRole "theirs"' in provider.explain(ask("delete", "pods", "ns1", user="carol")).closest


KITCHEN = (cluster_role("kitchen-reader", urls("get", "/kitchen/*")), bind("kitchen-reader", "User:alice"))


@pytest.mark.parametrize("groups", [(), ("system:authenticated",)])
def test_of_rules_that_are_equally_close_the_users_own_comes_before_everybodys(groups: tuple[str, ...]) -> None:
    """Idea 2: the built-in ones are for all who are known, and say nothing about this user."""
    for policy in (KITCHEN, (cluster_role("a", urls("get", "/a")), bind("a", "Group:system:authenticated"), *KITCHEN)):
        explained = rbac(*policy, defaults=True).explain(ask_path("get", "/cellar/list.txt", groups=groups))
        assert 'ClusterRole "kitchen-reader"' in explained.closest
    shared = (cluster_role("a", urls("get", "/a")), bind("a", "Group:system:authenticated"))
    cooks = (cluster_role("cooks", urls("*", "*s")), bind("cooks", "Group:cooks"))
    explained = rbac(*shared, *cooks).explain(ask_path("get", "/cellar", groups=("cooks", *groups)))
    assert 'ClusterRole "cooks"' in explained.closest, "also where it is a wider one"


def test_of_rules_for_everybody_the_operators_own_comes_before_the_built_in_ones() -> None:
    """Idea 2."""
    ours = (cluster_role("ours", urls("get", "/a")), bind("ours", "Group:system:authenticated"))
    assert 'ClusterRole "ours"' in rbac(*ours, defaults=True).explain(ask_path("get", "/b")).closest


def test_of_rules_that_somebody_bound_those_that_they_wrote_come_first() -> None:
    """Idea 2."""
    policy = (
        *(bind("system:discovery", "User:alice"), bind("ours", "User:alice")),
        cluster_role("ours", urls("get", "/a")),
    )
    assert 'ClusterRole "ours"' in rbac(*policy, defaults=True).explain(ask_path("get", "/b")).closest


def test_a_built_in_rule_that_is_closer_is_told_all_the_same() -> None:
    """Idea 2."""
    explained = rbac(*KITCHEN, defaults=True).explain(ask_path("put", "/healthz"))
    assert explained.failed.startswith("verb: ")
    assert "kitchen" not in explained.closest


def test_when_several_conditions_fail_all_are_told() -> None:
    """Idea 2."""
    provider = rbac(cluster_role("r", PODS), bind("r", "User:alice", namespace="ns1"))
    failed = provider.explain(ask("delete", "pods", "ns2")).failed
    assert [part.partition(":")[0] for part in failed.split("; ")] == ["verb", "namespace"]


def test_an_empty_policy_has_no_closest_rule() -> None:
    explained = rbac().explain(ask("get", "pods", "ns1"))
    assert (explained.closest, explained.failed) == ("", "subject: there are no bindings")


def test_the_remedy_is_a_role_and_a_binding_that_are_as_small_as_can_be() -> None:
    """Idea 2: in the namespace, for the name, and valid YAML."""
    text = rbac().explain(ask("get", "pods/log", "ns1", "web")).remedy
    found = read(text)
    (made,), (bound,) = found.roles, found.bindings
    assert (made.kind, made.namespace) == ("Role", "ns1")
    assert made.rules == (rule("get", "core", "pods/log", "web"),)
    assert (bound.kind, bound.namespace, bound.role_name) == ("RoleBinding", "ns1", made.name)
    assert [one.name for one in bound.subjects] == ["alice"]


def test_outside_of_namespaces_the_remedy_is_for_the_cluster() -> None:
    """Idea 2."""
    found = read(rbac().explain(ask("list", "nodes")).remedy)
    assert [found.roles[0].kind, found.bindings[0].kind] == ["ClusterRole", "ClusterRoleBinding"]
    assert read(rbac().explain(ask_path("get", "/metrics")).remedy).roles[0].rules == (urls("get", "/metrics"),)


def test_a_service_account_is_named_as_one() -> None:
    """R7."""
    (bound,) = read(rbac().explain(ask("get", "pods", "ns1", user="system:serviceaccount:ns2:robot")).remedy).bindings
    assert [(one.kind, one.namespace, one.name) for one in bound.subjects] == [("ServiceAccount", "ns2", "robot")]


def test_where_no_manifest_could_help_there_is_no_remedy() -> None:
    """R12: nobody's name, and a namespace that cannot exist."""
    assert rbac().explain(ask("get", "pods", "ns1", user="")).remedy == ""
    assert rbac().explain(ask("get", "pods", "No Namespace")).remedy == ""


def test_remedies_for_different_requests_do_not_replace_each_other() -> None:
    names = {
        read(rbac().explain(one).remedy).roles[0].name
        for one in (
            ask("get", "pods", "ns1", "a"),
            ask("get", "pods", "ns1", "b"),
            ask("get", "pods", "ns1", user="bob"),
            ask("get", "pods", "ns1", group="apps"),
        )
    }
    assert len(names) == 4
