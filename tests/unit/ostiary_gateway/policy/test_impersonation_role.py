"""The gateway's own role: enough for what its policy allows, and nothing beyond that."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import parse_all
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.interfaces.authorization import Grant, NonResourceRule, ResourceRule, Subject
from ostiary_gateway.policy.impersonation_role import (
    ANYTHING,
    MASTERS,
    RESOURCE_VERBS,
    ImpersonationTargets,
    constrained_role,
    legacy_role,
    manifest,
    unbounded_rules,
)
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.wire.rbac import read_manifests

GATEWAY = Subject("ServiceAccount", "gateway", "auth")
ITSELF = UserInfo("system:serviceaccount:auth:gateway")
DEV = ImpersonationTargets(frozenset({"dev", MASTERS}), users=("alice", "bob"), uids=True)


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


def made(*grants: Grant, identity: ImpersonationTargets = DEV) -> Cluster:
    return Cluster(manifest(constrained_role(identity, grants, name="gateway", subject=GATEWAY)))


def grant(verbs: str, resources: str, namespace: str = "", *, names: str = "", who: str = "dev") -> Grant:
    rule = ResourceRule(tuple(verbs.split()), ("",), tuple(resources.split()), tuple(names.split()))
    return Grant(Subject("Group", who), rule, namespace)


@pytest.mark.parametrize("is_legacy", [True, False])
def test_it_can_be_its_users_in_the_groups_of_the_policy_and_never_a_master(is_legacy: bool) -> None:
    """Idea 9."""
    if is_legacy:
        cluster = Cluster(manifest(legacy_role(DEV, name="gateway", subject=GATEWAY)))
        verb, group = "impersonate", ""
    else:
        cluster, verb, group = made(), "impersonate:user-info", "authentication.k8s.io"
    assert cluster.allows(verb, "users", "alice", group=group)
    assert not cluster.allows(verb, "users", "system:kube-controller-manager", group=group)
    assert not cluster.allows(verb, "users", "mallory", group=group)
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
    identity = ImpersonationTargets(groups)
    for objects in (
        constrained_role(identity, (), name="g", subject=GATEWAY),
        legacy_role(identity, name="g", subject=GATEWAY),
    ):
        assert "groups" not in manifest(objects)


def test_users_and_extra_fields_can_be_named() -> None:
    cluster = Cluster(
        manifest(
            legacy_role(ImpersonationTargets(users=("alice",), extra=("scopes",)), name="gateway", subject=GATEWAY)
        )
    )
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


def test_a_namespace_that_can_be_none_gives_nothing() -> None:
    assert not made(grant("get", "pods", "Not A Name")).allows("impersonate-on:user-info:get", "pods")


def test_a_policy_that_cannot_be_listed_leaves_only_whom_it_can_be() -> None:
    cluster = Cluster(manifest(constrained_role(DEV, None, name="gateway", subject=GATEWAY)))
    assert ANYTHING
    assert cluster.allows("impersonate-on:user-info:delete", "pods", namespace="team")
    assert cluster.allows_path("impersonate-on:user-info:get", "/metrics")
    assert not cluster.allows("impersonate:user-info", "groups", MASTERS, group="authentication.k8s.io")


def test_what_is_printed_is_yaml_that_kubectl_takes() -> None:
    objects = constrained_role(DEV, [grant("get", "pods", "team")], name="gateway", subject=GATEWAY)
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


# --- what a stolen token of the gateway is good for ---

CONTROL_PLANE = (
    *("system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"),
    *("system:node:n1", "system:anonymous", "system:serviceaccount:kube-system:namespace-controller"),
)
PRIVILEGED = (MASTERS, "system:nodes", "system:serviceaccounts", "system:serviceaccounts:kube-system", "system:x")
EVERYTHING = ResourceRule(("*",), ("*",), ("*",))
SYSTEM_GRANTS = [
    *(Grant(Subject("User", name), EVERYTHING) for name in CONTROL_PLANE),
    *(Grant(Subject("Group", name), EVERYTHING) for name in (*PRIVILEGED, "system:unauthenticated")),
    Grant(Subject("ServiceAccount", "namespace-controller", "kube-system"), EVERYTHING),
    Grant(Subject("ServiceAccount", "builder", "shop"), EVERYTHING, "shop"),
]
MODES = ("user-info", "serviceaccount", "arbitrary-node", "associated-node")


def becomes(cluster: Cluster, name: str) -> bool:
    """Whether the gateway passes the check of whom it can be, in any mode, for this username."""
    kind, namespace, own = "users", "", name
    if name.startswith("system:serviceaccount:"):
        kind, (namespace, own) = "serviceaccounts", tuple(name.split(":")[2:4])
    constrained_kind, constrained_name = ("nodes", name[12:]) if name.startswith("system:node:") else (kind, own)
    return cluster.allows("impersonate", kind, own, namespace=namespace) or any(
        cluster.allows(
            f"impersonate:{mode}",
            constrained_kind,
            constrained_name,
            group="authentication.k8s.io",
            namespace=namespace,
        )
        for mode in MODES
    )


@pytest.mark.parametrize("is_legacy", [True, False])
@pytest.mark.parametrize("groups", [frozenset({"dev"}), frozenset({"dev", *PRIVILEGED})])
def test_a_policy_taken_from_a_cluster_does_not_let_it_be_the_control_plane(
    is_legacy: bool, groups: frozenset[str]
) -> None:
    identity = ImpersonationTargets(groups, users=("alice", *CONTROL_PLANE))
    grants = [*SYSTEM_GRANTS, grant("get", "pods", "team")]
    objects = (
        legacy_role(identity, name="gateway", subject=GATEWAY)
        if is_legacy
        else constrained_role(identity, grants, name="gateway", subject=GATEWAY)
    )
    cluster = Cluster(manifest(objects))
    assert becomes(cluster, "alice")
    assert [name for name in CONTROL_PLANE if becomes(cluster, name)] == []
    verbs = ("impersonate", *(f"impersonate:{mode}" for mode in MODES))
    every = [(verb, group, name) for verb in verbs for group in ("", "authentication.k8s.io") for name in PRIVILEGED]
    assert [one for one in every if cluster.allows(one[0], "groups", one[2], group=one[1])] == []
    on = [f"impersonate-on:{mode}:{verb}" for mode in MODES for verb in ("list", "create")]
    assert [verb for verb in on if cluster.allows(verb, "secrets")] == []
    assert not cluster.allows("impersonate-on:user-info:list", "secrets", namespace="shop")
    if not is_legacy:
        assert cluster.allows("impersonate-on:user-info:get", "pods", namespace="team")


def test_what_other_users_may_do_is_not_what_the_gateway_may_do() -> None:
    """Only users whom it can be count: the policy may name people who sign in elsewhere."""
    cluster = made(
        Grant(Subject("User", "carol"), EVERYTHING),
        Grant(Subject("Group", "ops"), EVERYTHING),
        Grant(Subject("User", "alice"), ResourceRule(("get",), ("",), ("pods",))),
    )
    assert cluster.allows("impersonate-on:user-info:get", "pods")
    assert not cluster.allows("impersonate-on:user-info:get", "secrets")


def test_a_service_account_that_was_asked_for_has_its_own_verbs() -> None:
    """KEP-5284: constrained impersonation has a mode for service accounts, and takes no groups there."""
    identity = ImpersonationTargets(users=("alice",), service_accounts=(("shop", "builder"),))
    grants = [
        *SYSTEM_GRANTS[-2:],
        grant("get", "pods", "shop", who="system:serviceaccounts:shop"),
        grant("list", "nodes", who="system:authenticated"),
    ]
    cluster = made(*grants, identity=identity)
    verb, on, group = "impersonate:serviceaccount", "impersonate-on:serviceaccount:", "authentication.k8s.io"
    assert cluster.allows(verb, "serviceaccounts", "builder", group=group, namespace="shop")
    assert not cluster.allows(verb, "serviceaccounts", "other", group=group, namespace="shop")
    assert not cluster.allows(verb, "serviceaccounts", "builder", group=group, namespace="kube-system")
    assert not cluster.allows("impersonate:user-info", "users", "system:serviceaccount:shop:builder", group=group)
    assert cluster.allows(f"{on}delete", "secrets", "s", namespace="shop")
    assert cluster.allows(f"{on}list", "nodes")
    assert not cluster.allows(f"{on}delete", "secrets", "s", namespace="team")
    assert not cluster.allows("impersonate-on:user-info:delete", "secrets", "s", namespace="shop")
    older = Cluster(manifest(legacy_role(identity, name="gateway", subject=GATEWAY)))
    assert older.allows("impersonate", "serviceaccounts", "builder", namespace="shop")
    assert not older.allows("impersonate", "serviceaccounts", "builder", namespace="kube-system")


@pytest.mark.parametrize(("asked", "is_in"), [("builder", True), ("*", True), ("other", False)])
def test_what_a_policy_gives_a_service_account_by_its_username_is_in_the_role(asked: str, is_in: bool) -> None:
    identity = ImpersonationTargets(users=("alice",), service_accounts=(("shop", asked),))
    rule = ResourceRule(("get",), ("",), ("secrets",))
    grants = [Grant(Subject("User", f"system:serviceaccount:{name}"), rule, "x") for name in ("shop:builder", "a:b")]
    cluster = made(*grants, identity=identity)
    assert cluster.allows("impersonate-on:serviceaccount:get", "secrets", "s", namespace="x") is is_in
    assert not made(grants[1], identity=identity).allows("impersonate-on:serviceaccount:get", "secrets", namespace="x")


def test_a_node_that_was_asked_for_has_its_own_verbs() -> None:
    identity = ImpersonationTargets(users=("alice",), nodes=("n1",))
    cluster = made(grant("list", "pods", who="system:nodes"), identity=identity)
    assert cluster.allows("impersonate:arbitrary-node", "nodes", "n1", group="authentication.k8s.io")
    assert not cluster.allows("impersonate:arbitrary-node", "nodes", "n2", group="authentication.k8s.io")
    assert cluster.allows("impersonate-on:arbitrary-node:list", "pods")
    assert not cluster.allows("impersonate-on:user-info:list", "pods")
    older = Cluster(manifest(legacy_role(identity, name="gateway", subject=GATEWAY)))
    assert older.allows("impersonate", "users", "system:node:n1")


def test_each_rule_without_a_bound_is_told(subtests: pytest.Subtests) -> None:
    cases: list[tuple[ImpersonationTargets, list[Grant] | None, tuple[str, ...]]] = [
        (ImpersonationTargets(users=("alice",), groups=frozenset({"dev"})), [grant("get", "pods")], ()),
        (ImpersonationTargets(any_user=True), [], ("can be any user, also one of the control plane",)),
        (ImpersonationTargets(users=("alice",), uids=True, extra=("a", "b")), [], ("any uid", 'extra field "a", "b"')),
        (
            ImpersonationTargets(users=("alice",), service_accounts=(("shop", "*"),)),
            [],
            ('any service account in namespace "shop"',),
        ),
        (
            ImpersonationTargets(users=("alice",), service_accounts=(("kube-system", "*"),)),
            [],
            ('in namespace "kube-system", also the controllers of the control plane',),
        ),
        (DEV, [grant("get", "*")], ("can claim any uid", "may act on any resource:")),
        (DEV, [grant("get", "*", "team")], ("can claim any uid", 'any resource in namespace "team"')),
        (DEV, None, ("can claim any uid", "may act on any resource", "may act on any path")),
    ]
    for identity, grants, told in cases:
        with subtests.test(identity=identity, grants=grants, told=told):
            sentences = unbounded_rules(constrained_role(identity, grants, name="gateway", subject=GATEWAY))
            assert len(sentences) == len(told)
            for text in told:
                assert any(text in sentence for sentence in sentences), sentences


def test_service_accounts_that_sign_in_are_impersonated_with_uid_and_pod_by_the_older_verb() -> None:
    pod = "authentication.kubernetes.io/pod-name"
    for signs_in in (False, True):
        identity = ImpersonationTargets(
            users=("alice",), uids=True, extra=(pod,), service_accounts=(("shop", "a"),), accounts_sign_in=signs_in
        )
        cluster, group = made(identity=identity), "authentication.k8s.io"
        assert cluster.allows("impersonate", "serviceaccounts", "a", namespace="shop") is signs_in
        assert cluster.allows("impersonate", "uids", "7", group=group) is signs_in
        assert cluster.allows("impersonate", f"userextras/{pod}", "web", group=group) is signs_in
        assert not cluster.allows("impersonate", "serviceaccounts", "b", namespace="shop")
        assert not cluster.allows("impersonate", "serviceaccounts", "a", namespace="kube-system")
        assert not cluster.allows("impersonate", "users", "alice")
    alone = made(identity=ImpersonationTargets(users=("alice",), uids=True, accounts_sign_in=True))
    assert not alone.allows("impersonate", "uids", "7", group="authentication.k8s.io")
