"""What may this user do, and who may do this?"""

from __future__ import annotations

from dataclasses import replace

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.authorization import NonResourceRule, ResourceRule, Subject
from tests.unit.ostiary_gateway.providers.rbac.policies import ask, ask_path, bind, cluster_role, rbac, role, rule, urls

PODS, SECRETS = rule("get", "core", "pods"), rule("get", "core", "secrets")
PROVIDER = rbac(
    cluster_role("all", rule("*", "*", "*")),
    cluster_role("pods", PODS, urls("get", "/a")),
    role("secrets", "ns1", SECRETS, rule("get get", "core", "pods")),
    bind("all", "User:super"),
    bind("pods", "User:alice"),
    bind("pods", "Group:devs", namespace="ns1"),
    bind("secrets", "User:alice", "ServiceAccount:robot", namespace="ns1", role_kind="Role"),
    bind("gone", "User:carol", namespace="ns1"),
)


def test_rules_of_a_namespace_are_told_only_there_and_each_once() -> None:
    """R1: without a namespace only those of the cluster."""
    alice = UserInfo("alice")
    here = PROVIDER.rules_for(alice, "ns1")
    assert here.resource_rules == (
        ResourceRule(("get",), ("",), ("pods",)),
        ResourceRule(("get",), ("",), ("secrets",)),
    )
    assert here.non_resource_rules == (NonResourceRule(("get",), ("/a",)),)
    assert not here.incomplete
    for namespace in ("ns2", ""):
        assert PROVIDER.rules_for(alice, namespace).resource_rules == (ResourceRule(("get",), ("",), ("pods",)),)


def test_rules_for_paths_that_a_role_binding_cannot_give_are_not_told() -> None:
    """R8."""
    assert PROVIDER.rules_for(UserInfo("bob", groups=("devs",)), "ns1").non_resource_rules == ()


def test_an_empty_user_has_no_rules() -> None:
    """R1."""
    found = PROVIDER.rules_for(UserInfo(""), "ns1")
    assert (found.resource_rules, found.non_resource_rules) == ((), ())


def test_rules_that_cannot_be_found_are_told_as_missing() -> None:
    """R1."""
    found = PROVIDER.rules_for(UserInfo("carol"), "ns1")
    assert found.incomplete
    assert "gone" in found.error


def test_masters_have_the_rule_for_everything() -> None:
    """R10."""
    found = PROVIDER.rules_for(UserInfo("x", groups=("system:masters",)), "ns1")
    assert found.resource_rules == (ResourceRule(("*",), ("*",), ("*",)),)
    assert found.non_resource_rules == (NonResourceRule(("*",), ("*",)),)


def who(verb: str, resource: str, namespace: str = "ns1") -> list[str]:
    return [f"{one.kind} {one.name}" for one in PROVIDER.who_can(ask(verb, resource, namespace))]


def test_everyone_who_can_is_named_masters_and_superusers_first() -> None:
    """R10: those of the cluster for any namespace, those of a role in its own, for its verbs."""
    assert who("get", "pods") == [
        "Group system:masters",
        "User super",
        "User alice",
        "Group devs",
        "User alice",
        "ServiceAccount robot",
    ]
    assert who("get", "pods", namespace="ns2") == ["Group system:masters", "User super", "User alice"]
    assert who("delete", "secrets") == ["Group system:masters", "User super"]
    assert who("get", "secrets", namespace="") == ["Group system:masters", "User super"]


def test_each_is_named_with_the_binding_that_says_so() -> None:
    """R10."""
    *_, robot = PROVIDER.who_can(ask("get", "secrets", "ns1"))
    assert robot == Subject("ServiceAccount", "robot", "ns1", via='RoleBinding "bind-secrets/ns1" of Role "secrets"')


def test_paths_are_asked_for_too() -> None:
    """R6."""
    assert [one.name for one in PROVIDER.who_can(ask_path("get", "/a"))] == ["system:masters", "alice"]


def test_rbac_tells_each_rule_of_each_subject_where_it_holds() -> None:
    provider = rbac(
        cluster_role("r", rule("get", "core", "pods", "a"), urls("get", "/x")),
        role("r", "team", rule("list", "apps", "deployments")),
        bind("r", "User:alice"),
        bind("r", "Group:dev", namespace="team"),
        replace(bind("r", "User:bob", namespace="team", role_kind="Role"), name="local"),
        bind("gone", "User:eve"),
    )
    told = [(one.subject.name, one.rule, one.namespace, one.subject.via) for one in provider.grants()]
    pods = ResourceRule(("get",), ("",), ("pods",), ("a",))
    cluster, local = 'ClusterRoleBinding "bind-r" of ClusterRole "r"', 'RoleBinding "bind-r/team" of'
    assert told == [
        ("alice", pods, "", cluster),
        ("alice", NonResourceRule(("get",), ("/x",)), "", cluster),
        # A RoleBinding gives no paths.
        ("dev", pods, "team", f'{local} ClusterRole "r"'),
        ("bob", ResourceRule(("list",), ("apps",), ("deployments",)), "team", 'RoleBinding "local/team" of Role "r"'),
    ]


def test_whoever_has_a_rule_somewhere_has_rights() -> None:
    provider = rbac(
        cluster_role("pods", PODS),
        cluster_role("paths", urls("get", "/metrics")),
        cluster_role("sessions", rule("*", "ostiary.dev", "*")),
        role("secrets", "ns1", SECRETS),
        bind("pods", "User:alice"),
        bind("paths", "Group:monitors"),
        bind("paths", "User:mistaken", namespace="ns1"),
        bind("sessions", "User:operator"),
        bind("secrets", "Group:devs", "ServiceAccount:robot", namespace="ns1", role_kind="Role"),
        bind("gone", "User:carol"),
    )

    def has_rights(name: str, *groups: str) -> bool:
        return provider.gives_rights(UserInfo(name, groups=groups))

    assert has_rights("alice")
    assert has_rights("bob", "devs")
    assert has_rights("bob", "monitors")
    assert has_rights("system:serviceaccount:ns1:robot")
    assert has_rights("bob", "system:masters")
    # Discovery and reviews of oneself, which the defaults give to everybody, are nothing to be offered.
    assert not has_rights("bob", "system:authenticated")
    # Roles of the gateway's own API, roles that do not exist, and paths by a RoleBinding give nothing in a cluster.
    assert not has_rights("operator")
    assert not has_rights("carol")
    assert not has_rights("mistaken")
    assert not has_rights("")
