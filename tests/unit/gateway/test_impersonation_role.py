"""The gateway's own role: enough for what its policy allows, and nothing beyond that."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.config import parse_all
from ostiary.gateway.impersonation_role import (
    ANYTHING,
    MASTERS,
    RESOURCE_VERBS,
    Identity,
    constrained,
    legacy,
    manifest,
)
from ostiary.interfaces.authorization import Grant, NonResourceRule, ResourceRule, Subject
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary.plugins.authorization.rbac import RbacAuthorization
from ostiary.wire.rbac import read_manifests

GATEWAY = Subject("ServiceAccount", "gateway", "auth")
ITSELF = UserInfo("system:serviceaccount:auth:gateway")
DEV = Identity(frozenset({"dev", MASTERS}))


class Cluster:
    """A cluster with nothing in it but the manifests that were printed: may the gateway do this there?"""

    def __init__(self, text: str) -> None:
        found = read_manifests(parse_all(text))
        assert found.problems == ()
        self._rbac = RbacAuthorization(policy=found, defaults=False)

    def allows(self, verb: str, resource: str, name: str = "", *, group: str = "", namespace: str = "") -> bool:
        kind, _, below = resource.partition("/")
        asked = RequestInfo(
            verb, "", "", True, api_group=group, namespace=namespace, resource=kind, subresource=below, name=name
        )
        return self._rbac.decide(Attributes(ITSELF, asked)).allowed

    def allows_path(self, verb: str, path: str) -> bool:
        return self._rbac.decide(Attributes(ITSELF, RequestInfo(verb, "", path))).allowed


def made(*grants: Grant, identity: Identity = DEV) -> Cluster:
    return Cluster(manifest(constrained(identity, grants, name="gateway", subject=GATEWAY)))


def grant(verbs: str, resources: str, namespace: str = "", *, names: str = "", who: str = "dev") -> Grant:
    rule = ResourceRule(tuple(verbs.split()), ("",), tuple(resources.split()), tuple(names.split()))
    return Grant(Subject("Group", who), rule, namespace)


@pytest.mark.parametrize("is_legacy", [True, False])
def test_it_can_be_anybody_in_the_groups_of_the_policy_and_never_a_master(is_legacy: bool) -> None:
    """Idea 9."""
    if is_legacy:
        cluster = Cluster(manifest(legacy(DEV, name="gateway", subject=GATEWAY)))
        verb, group = "impersonate", ""
    else:
        cluster, verb, group = made(), "impersonate:user-info", "authentication.k8s.io"
    assert cluster.allows(verb, "users", "alice", group=group)
    assert cluster.allows(verb, "groups", "dev", group=group)
    assert not cluster.allows(verb, "groups", "ops", group=group)
    assert not cluster.allows(verb, "groups", MASTERS, group=group)
    assert cluster.allows(verb, "uids", "17", group="authentication.k8s.io")
    # Checking it in the core group is the classic mistake.
    assert not cluster.allows(verb, "uids", "17")
    assert not cluster.allows("get", "pods")


@pytest.mark.parametrize("groups", [frozenset(), frozenset({MASTERS})])
def test_a_policy_without_groups_does_not_give_it_all_groups(groups: frozenset[str]) -> None:
    """A rule without names would be about every group."""
    identity = Identity(groups)
    for objects in (
        constrained(identity, (), name="g", subject=GATEWAY),
        legacy(identity, name="g", subject=GATEWAY),
    ):
        assert "groups" not in manifest(objects)


def test_users_and_extra_fields_can_be_named() -> None:
    cluster = Cluster(manifest(legacy(Identity(users=("alice",), extra=("scopes",)), name="gateway", subject=GATEWAY)))
    assert cluster.allows("impersonate", "users", "alice")
    assert not cluster.allows("impersonate", "users", "kubernetes-admin")
    assert cluster.allows("impersonate", "userextras/scopes", "x", group="authentication.k8s.io")
    assert not cluster.allows("impersonate", "userextras/other", "x", group="authentication.k8s.io")


def test_it_acts_only_where_and_how_the_policy_allows_somebody() -> None:
    cluster = made(grant("get list escalate", "pods pods/log", "team"), grant("get", "nodes", names="n1"))
    on = "impersonate-on:user-info:"
    assert cluster.allows(f"{on}list", "pods", namespace="team")
    assert cluster.allows(f"{on}get", "pods/log", "web", namespace="team")
    assert not cluster.allows(f"{on}list", "pods", namespace="other")
    assert not cluster.allows(f"{on}list", "pods")
    assert not cluster.allows(f"{on}delete", "pods", namespace="team")
    assert not cluster.allows(f"{on}escalate", "pods", namespace="team")
    assert cluster.allows(f"{on}get", "nodes", "n1")
    assert not cluster.allows(f"{on}get", "nodes", "n2")


def test_a_star_is_spelled_out() -> None:
    """The verb "*" would be all that the gateway itself could ever do."""
    cluster = made(grant("*", "*"))
    assert all(cluster.allows(f"impersonate-on:user-info:{verb}", "secrets", "s") for verb in RESOURCE_VERBS)
    assert not cluster.allows("get", "secrets", "s")
    assert not cluster.allows("impersonate", "groups", MASTERS)


def test_what_masters_have_is_not_what_the_gateway_needs() -> None:
    cluster = made(grant("*", "*", who=MASTERS))
    assert not cluster.allows("impersonate-on:user-info:get", "pods")


def test_paths_are_paths() -> None:
    rule = NonResourceRule(("get", "use"), ("/healthz", "/healthz/*"))
    cluster = made(Grant(Subject("Group", "dev"), rule))
    assert cluster.allows_path("impersonate-on:user-info:get", "/healthz/etcd")
    assert not cluster.allows_path("impersonate-on:user-info:use", "/healthz")
    assert not cluster.allows_path("impersonate-on:user-info:get", "/metrics")


def test_a_policy_whose_rules_cover_subresources_unnamed_gets_them_named() -> None:
    rule = ResourceRule(("*",), ("",), ("pods",))
    cluster = made(Grant(Subject("User", "alice"), rule, "*", subresources=True))
    assert cluster.allows("impersonate-on:user-info:create", "pods/exec", "web", namespace="team")
    assert not cluster.allows("impersonate-on:user-info:create", "secrets", namespace="team")


def test_a_namespace_that_can_be_none_gives_nothing() -> None:
    assert not made(grant("get", "pods", "Not A Name")).allows("impersonate-on:user-info:get", "pods")


def test_a_policy_that_cannot_be_listed_leaves_only_whom_it_can_be() -> None:
    cluster = Cluster(manifest(constrained(DEV, None, name="gateway", subject=GATEWAY)))
    assert ANYTHING
    assert cluster.allows("impersonate-on:user-info:delete", "pods", namespace="team")
    assert cluster.allows_path("impersonate-on:user-info:get", "/metrics")
    assert not cluster.allows("impersonate:user-info", "groups", MASTERS, group="authentication.k8s.io")


def test_what_is_printed_is_yaml_that_kubectl_takes() -> None:
    objects = constrained(DEV, [grant("get", "pods", "team")], name="gateway", subject=GATEWAY)
    kinds = [document["kind"] for document in yaml.safe_load_all(manifest(objects))]
    assert kinds == ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]


VERBS = st.lists(st.sampled_from(["get", "list", "create", "*", "bind"]), min_size=1, max_size=2)
RESOURCES = st.lists(st.sampled_from(["pods", "pods/exec", "*", "nodes"]), min_size=1, max_size=2)
GRANTS = st.lists(
    st.builds(
        Grant,
        st.builds(Subject, st.just("Group"), st.sampled_from(["dev", MASTERS])),
        st.builds(
            ResourceRule,
            VERBS.map(tuple),
            st.sampled_from([("",), ("apps",), ("*",)]),
            RESOURCES.map(tuple),
            st.sampled_from([(), ("a",)]),
        ),
        st.sampled_from(["", "team"]),
    ),
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(
    GRANTS,
    st.sampled_from(["get", "list", "create", "delete"]),
    st.sampled_from(["pods", "pods/exec", "secrets"]),
    st.sampled_from(["", "team", "other"]),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "apps"]),
)
def test_it_may_act_exactly_where_some_rule_lets_somebody(
    grants: list[Grant], verb: str, resource: str, namespace: str, name: str, group: str
) -> None:
    def lets(one: Grant) -> bool:
        rule = one.rule
        assert isinstance(rule, ResourceRule)
        kinds = {resource, "*"}
        return (
            one.subject.name != MASTERS
            and one.namespace in ("", namespace)
            and bool({verb, "*"} & set(rule.verbs))
            and bool({group, "*"} & set(rule.api_groups))
            and bool(kinds & set(rule.resources))
            and (not rule.resource_names or name in rule.resource_names)
        )

    cluster = made(*grants)
    expected = any(map(lets, grants))
    assert (
        cluster.allows(f"impersonate-on:user-info:{verb}", resource, name, group=group, namespace=namespace) == expected
    )
    assert not cluster.allows("impersonate", "groups", MASTERS)
    assert not cluster.allows("impersonate:user-info", "groups", MASTERS, group="authentication.k8s.io")
