"""What a policy allows, case by case: Kubernetes' own cases in our words."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from ostiary.model import Attributes, UserInfo, Verdict
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.providers.kubernetes.attributes import KubernetesAttributes
from ostiary_gateway.providers.rbac import RbacAuthorization
from tests.unit.ostiary_gateway.providers.rbac.policies import (
    ask,
    ask_path,
    bind,
    cluster_role,
    rbac,
    role,
    rule,
    urls,
)

STAR = rule("*", "*", "*")


def allowed(provider: RbacAuthorization, attributes: Attributes) -> bool:
    decision = provider.decide(attributes)
    assert decision.verdict is not Verdict.DENY
    return decision.allowed


def only(*rules: object) -> RbacAuthorization:
    """A provider that gives alice these rules in the whole cluster."""
    return rbac(cluster_role("r", *rules), bind("r", "User:alice"))  # type: ignore[arg-type]


# --- where a binding holds ---


def test_a_role_binding_gives_a_cluster_role_in_its_namespace_only() -> None:
    """R1, R8: for the user or the group, any verb there; elsewhere and in the cluster nothing."""
    provider = rbac(cluster_role("all", STAR), bind("all", "User:alice", "Group:devs", namespace="ns1"))
    for who in ({"user": "alice"}, {"user": "bob", "groups": ("devs",)}):
        for verb in ("get", "GET", "delete", "anything"):
            assert allowed(provider, ask(verb, "pods", "ns1", **who))
        assert allowed(provider, ask("get", "pods/log", "ns1", "web", **who))
        assert not allowed(provider, ask("GET", "pods", "ns2", **who))
        assert not allowed(provider, ask("get", "nodes", **who))
    assert not allowed(provider, ask("get", "pods", "ns1", user="bob"))


def test_a_cluster_role_binding_holds_in_every_namespace_and_in_none() -> None:
    """R1."""
    provider = only(rule("get", "core", "pods nodes"))
    assert allowed(provider, ask("get", "pods", "ns1"))
    assert allowed(provider, ask("get", "nodes"))


def test_a_role_is_of_its_namespace() -> None:
    """R8: the same name in another namespace is another role, or none."""
    provider = rbac(
        role("r", "ns1", rule("get", "core", "pods")),
        bind("r", "User:alice", namespace="ns1", role_kind="Role"),
        bind("r", "User:alice", namespace="ns2", role_kind="Role"),
    )
    assert allowed(provider, ask("get", "pods", "ns1"))
    assert not allowed(provider, ask("get", "pods", "ns2"))
    assert not allowed(provider, ask("get", "pods"))


def test_a_cluster_role_binding_never_finds_a_role() -> None:
    """R8."""
    provider = rbac(role("r", "", STAR), role("r", "ns1", STAR), bind("r", "User:alice", role_kind="Roll"))
    assert not allowed(provider, ask("get", "pods", "ns1"))


def test_a_role_that_does_not_exist_stops_nothing_else() -> None:
    """R1: it is told to the operator, and the other bindings count."""
    provider = rbac(
        cluster_role("there", rule("get", "core", "pods")),
        bind("gone", "User:alice"),
        bind("there", "User:alice"),
    )
    assert allowed(provider, ask("get", "pods", "ns1"))
    refused = provider.decide(ask("delete", "pods", "ns1"))
    assert refused.verdict is Verdict.NO_OPINION
    assert refused.reason == 'RBAC: ClusterRoleBinding "bind-gone" refers to ClusterRole "gone", which does not exist'


@pytest.mark.parametrize(
    ("namespace", "who", "reason"),
    [
        ("", "User:alice", 'ClusterRoleBinding "bind-r" of ClusterRole "r" to User "alice"'),
        ("ns1", "User:alice", 'RoleBinding "bind-r/ns1" of ClusterRole "r" to User "alice"'),
        ("ns1", "Group:devs", 'RoleBinding "bind-r/ns1" of ClusterRole "r" to Group "devs"'),
        ("ns1", "ServiceAccount:robot", 'RoleBinding "bind-r/ns1" of ClusterRole "r" to ServiceAccount "robot/ns1"'),
    ],
)
def test_the_reason_names_binding_role_and_subject(namespace: str, who: str, reason: str) -> None:
    """R2."""
    provider = rbac(cluster_role("r", STAR), bind("r", who, namespace=namespace))
    user = "system:serviceaccount:ns1:robot" if who.startswith("Service") else "alice"
    decision = provider.decide(ask("get", "pods", "ns1", user=user, groups=("devs",)))
    assert decision.reason == f"RBAC: allowed by {reason}"


# --- what a rule says ---


def test_each_part_of_a_rule_must_match() -> None:
    """R3."""
    provider = only(rule("get", "apps", "deployments"))
    assert allowed(provider, ask("get", "deployments", "ns1", group="apps"))
    assert not allowed(provider, ask("GET", "deployments", "ns1", group="apps"))
    assert not allowed(provider, ask("get", "deployments", "ns1"))
    assert not allowed(provider, ask("get", "Deployments", "ns1", group="apps"))


def test_the_empty_group_is_the_core_and_nothing_else() -> None:
    """R3."""
    provider = only(rule("get", "core", "pods"))
    assert not allowed(provider, ask("get", "pods", "ns1", group="apps"))


def test_rules_that_differ_in_one_part_only_all_count() -> None:
    """R1, R3: for a resource, a named object and a path."""
    provider = only(
        rule("get", "core", "pods"),
        rule("get", "apps", "pods"),
        rule("list", "apps", "pods"),
        rule("get", "core", "secrets", "a"),
        rule("get", "apps", "secrets", "a"),
        rule("get", "apps", "secrets", "b"),
        urls("get", "/a /a/*"),
        urls("post", "/a /a/*"),
    )
    for attributes in (
        ask("get", "pods", "ns1"),
        ask("get", "pods", "ns1", group="apps"),
        ask("list", "pods", "ns1", group="apps"),
        ask("get", "secrets", "ns1", "a"),
        ask("get", "secrets", "ns1", "a", group="apps"),
        ask("get", "secrets", "ns1", "b", group="apps"),
        ask_path("get", "/a"),
        ask_path("post", "/a"),
        ask_path("get", "/a/b"),
        ask_path("post", "/a/b"),
    ):
        assert allowed(provider, attributes)
    assert not allowed(provider, ask("list", "pods", "ns1"))
    assert not allowed(provider, ask("get", "secrets", "ns1", "b"))


def test_two_of_each_allow_all_eight() -> None:
    """R3."""
    provider = only(rule("v1 v2", "g1 g2", "r1 r2"))
    for verb, group, resource in product(("v1", "v2"), ("g1", "g2"), ("r1", "r2")):
        assert allowed(provider, ask(verb, resource, "ns1", group=group))
    assert not allowed(provider, ask("v3", "r1", "ns1", group="g1"))


@pytest.mark.parametrize("star", [0, 1, 2])
def test_a_star_for_one_part_leaves_the_others_exact(star: int) -> None:
    """R3, R4."""
    parts = ["v", "g", "r"]
    parts[star] = "*"
    provider = only(rule(*parts))
    for verb, group, resource in product("vx", "gx", "rx"):
        exact = [have == want for have, want in zip((verb, group, resource), "vgr", strict=True)]
        del exact[star]
        assert allowed(provider, ask(verb, resource, "ns1", group=group)) is all(exact)


def test_a_resource_is_not_its_subresource() -> None:
    """R4."""
    pods, status = only(rule("*", "*", "pods")), only(rule("*", "*", "pods/status */scale"))
    assert not allowed(pods, ask("patch", "pods/status", "ns1", "web"))
    assert not allowed(status, ask("patch", "pods", "ns1", "web"))
    assert allowed(status, ask("patch", "pods/status", "ns1", "web"))
    assert allowed(status, ask("patch", "anything/scale", "ns1", "web"))
    assert not allowed(status, ask("patch", "scale", "ns1", "web"))


def test_a_star_is_for_subresources_too_and_after_a_slash_it_is_no_star() -> None:
    """R4: ``pods/*`` never matches."""
    assert allowed(only(rule("get", "core", "*")), ask("get", "pods/log", "ns1"))
    assert not allowed(only(rule("get", "core", "pods/*")), ask("get", "pods/log", "ns1"))
    assert not allowed(only(rule("get", "core", "pods/*")), ask("get", "pods", "ns1"))


def test_a_rule_with_names_is_for_requests_with_these_names() -> None:
    """R5: create and deletecollection name nothing; list only by a field selector, which sets the name."""
    provider = only(rule("*", "core", "pods", "web db"))
    assert allowed(provider, ask("get", "pods", "ns1", "db"))
    assert allowed(provider, ask("list", "pods", "ns1", "web"))
    assert not allowed(provider, ask("get", "pods", "ns1", "other"))
    for verb in ("create", "deletecollection", "list"):
        assert not allowed(provider, ask(verb, "pods", "ns1"))


def test_a_star_among_names_is_a_name() -> None:
    """R5."""
    provider = only(rule("get", "core", "pods", "*"))
    assert not allowed(provider, ask("get", "pods", "ns1", "web"))
    assert allowed(provider, ask("get", "pods", "ns1", "*"))


def test_paths_match_exactly_or_up_to_a_star(subtests: pytest.Subtests) -> None:
    """R6."""
    cases = [
        ("/apis", "/apis", True),
        ("/apis", "/apis/v1", False),
        ("/apis/*", "/apis/v1", True),
        ("/apis/*", "/apis/v1/foobar", True),
        ("/apis/*", "/apis", False),
        ("/apis/*", "/api/v1", False),
        ("/foo*", "/foobar", True),
        ("/foo***", "/foobar", True),
        ("*", "/whatever", True),
        ("/a /b", "/b", True),
        ("/a /b", "/b/c", False),
    ]
    for pattern, path, expected in cases:
        with subtests.test(pattern=pattern, path=path, expected=expected):
            provider = only(urls("get", pattern))
            assert allowed(provider, ask_path("get", path)) is expected
            assert not allowed(provider, ask_path("post", path))
            assert allowed(only(urls("*", pattern)), ask_path("post", path)) is expected


def test_rules_for_paths_and_for_resources_do_not_mix() -> None:
    """R6, R8: and no RoleBinding gives a path."""
    assert not allowed(only(STAR), ask_path("get", "/healthz"))
    assert not allowed(only(urls("*", "*")), ask("get", "pods", "ns1"))
    provider = rbac(cluster_role("r", urls("*", "*")), bind("r", "User:alice", namespace="ns1"))
    assert not allowed(provider, ask_path("get", "/healthz"))


# --- who is meant ---


def test_service_accounts_are_users_with_a_long_name() -> None:
    """R7."""
    provider = rbac(
        cluster_role("r", STAR),
        bind("r", "ServiceAccount:robot", Subject("ServiceAccount", "guest", "ns2"), namespace="ns1"),
    )
    assert allowed(provider, ask("get", "pods", "ns1", user="system:serviceaccount:ns1:robot"))
    assert allowed(provider, ask("get", "pods", "ns1", user="system:serviceaccount:ns2:guest"))
    assert not allowed(provider, ask("get", "pods", "ns1", user="system:serviceaccount:ns2:robot"))
    assert not allowed(provider, ask("get", "pods", "ns1", user="robot"))


def test_a_service_account_without_a_namespace_in_the_cluster_is_nobody() -> None:
    """R7: and neither is a subject of another kind."""
    provider = rbac(cluster_role("r", STAR), bind("r", "ServiceAccount:robot", "Robot:alice", "User:"))
    for user in ("system:serviceaccount::robot", "robot", "alice", ""):
        assert not allowed(provider, ask("get", "pods", "ns1", user=user))


def test_names_are_compared_as_they_are() -> None:
    """R7: a user is no group, and nothing is folded or trimmed."""
    provider = rbac(cluster_role("r", STAR), bind("r", "User:alice", "Group:devs,ops"))
    for attributes in (
        ask("get", "pods", user="Alice"),
        ask("get", "pods", user="alice "),
        ask("get", "pods", user="devs,ops"),
        ask("get", "pods", user="bob", groups=("alice", "devs", "ops")),
    ):
        assert not allowed(provider, attributes)
    assert allowed(provider, ask("get", "pods", user="bob", groups=("devs,ops",)))


def test_whoever_is_known_is_authenticated() -> None:
    """R7, R11: the group is implied, unless the token says otherwise."""
    provider = rbac(cluster_role("r", STAR), bind("r", "Group:system:authenticated"))
    assert allowed(provider, ask("get", "pods"))
    assert allowed(provider, ask("get", "pods", groups=("system:authenticated",)))
    assert not allowed(provider, ask("get", "pods", user="system:anonymous", groups=("system:unauthenticated",)))
    assert not allowed(provider, ask("get", "pods", user="system:anonymous"))
    assert not allowed(provider, ask("get", "pods", groups=("system:unauthenticated",)))
    assert not allowed(provider, ask("get", "pods", user=""))


def test_masters_may_do_everything_without_a_policy() -> None:
    """R10."""
    provider = rbac()
    assert allowed(provider, ask("delete", "nodes", groups=("system:masters",)))
    assert allowed(provider, ask_path("post", "/anything", groups=("system:masters",)))
    assert not allowed(provider, ask("delete", "nodes", user="system:masters"))


def test_many_bindings_of_one_subject_all_count() -> None:
    """R1: more roles than fit a quick look, some of them twice."""
    roles = [cluster_role(f"r{number}", rule("get", "core", "things", f"n{number}")) for number in range(40)]
    bindings = [replace(bind(f"r{number % 40}", "User:alice", "User:alice"), name=f"b{number}") for number in range(80)]
    provider = rbac(*roles, *bindings)
    assert all(allowed(provider, ask("get", "things", "ns1", f"n{number}")) for number in range(40))
    assert not allowed(provider, ask("get", "things", "ns1", "n40"))
    assert not allowed(provider, ask("get", "things", "ns1"))


def test_any_number_of_users_and_names_of_any_length_are_decided_alike() -> None:
    """R7: whatever the index remembers of those before."""
    provider = rbac(cluster_role("r", STAR), bind("r", "Group:devs", namespace="ns1"))
    for number in range(10_000):
        assert allowed(provider, ask("get", "pods", f"ns{number % 3}", user=f"u{number}", groups=("devs",))) is (
            number % 3 == 1
        )
    assert allowed(provider, ask("get", "pods", "ns1", user="u" * 100_000, groups=("x" * 100_000, "devs")))


# --- 404 or 403 ---


def test_a_refusal_is_hidden_where_the_user_has_nothing_and_a_namespace_is_named(subtests: pytest.Subtests) -> None:
    """S54, S55."""
    cases = [
        (ask("get", "pods", "ns1", "web"), True),
        (ask("list", "pods", "ns1"), True),
        (ask("get", "namespaces", "ns1", "ns1"), True),
        (ask("get", "namespaces", "", "ns1"), True),
        (ask("create", "namespaces"), False),
        (ask("list", "pods"), False),
        (ask("get", "nodes", "", "n"), False),
        (ask_path("get", "/metrics"), False),
    ]
    for attributes, hidden in cases:
        with subtests.test(attributes=attributes, hidden=hidden):
            for provider in (rbac(), rbac(defaults=True)):
                decision = provider.decide(attributes)
                assert (decision.verdict, decision.hidden) == (Verdict.NO_OPINION, hidden)


def test_what_makes_somebody_known_in_a_namespace(subtests: pytest.Subtests) -> None:
    """S55: any rule that could allow a request inside of it."""
    cases = [
        (rule("get", "core", "pods"), "", False),
        (rule("get", "*", "*"), "", False),
        (rule("get", "core", "*/scale"), "", False),
        (rule("get", "example.com", "widgets"), "", False),
        (rule("list", "core", "namespaces"), "", False),
        (rule("get", "core", "namespaces", "ns1"), "", False),
        (rule("get", "core", "namespaces", "other"), "", True),
        (rule("create", "core", "namespaces"), "", True),
        (rule("get", "core", "nodes nodes/proxy persistentvolumes"), "", True),
        (rule("*", "*", "nodes clusterroles"), "", True),
        (rule("create", "authorization.k8s.io", "selfsubjectaccessreviews"), "", True),
        (rule("get", "core", "pods/*"), "", True),
        (urls("*", "*"), "", True),
        (rule("list", "core", "configmaps"), "ns1", False),
        (rule("create", "authentication.k8s.io", "selfsubjectreviews"), "ns1", True),
        (rule("get", "core", "namespaces", "other"), "ns1", True),
        (rule("list", "core", "configmaps"), "ns2", True),
    ]
    for given, namespace, hidden in cases:
        with subtests.test(given=given, namespace=namespace, hidden=hidden):
            provider = rbac(cluster_role("r", given), bind("r", "Group:devs", namespace=namespace))
            assert provider.decide(ask("delete", "secrets", "ns1", "x", groups=("devs",))).hidden is hidden
            assert provider.decide(ask("delete", "namespaces", "", "ns1", groups=("devs",))).hidden is hidden


def test_a_binding_of_a_missing_role_makes_nobody_known() -> None:
    """S55."""
    decision = rbac(bind("gone", "User:alice", namespace="ns1")).decide(ask("get", "pods", "ns1"))
    assert decision.hidden
    assert "gone" in decision.reason


# --- the contract ---


def test_what_is_not_allowed_is_no_opinion_so_that_the_chain_goes_on() -> None:
    """R1, R14: the next provider may allow it, and nothing is said against it."""
    for provider in (rbac(), only(rule("get", "core", "pods"))):
        for attributes in (ask("delete", "pods", "ns1"), ask("list", "nodes"), ask_path("get", "/x")):
            decision = provider.decide(attributes)
            assert (decision.verdict, decision.reason) == (Verdict.NO_OPINION, "")


async def test_authorize_says_what_decide_says() -> None:
    """S2, S12, S45: user, groups, verb and resource go in; an answer without waiting comes out."""
    provider = only(rule("get", "core", "pods"))
    for attributes in (ask("get", "pods", "ns1"), ask("delete", "pods", "ns1")):
        assert await provider.authorize(attributes) == provider.decide(attributes)


async def test_relevant_groups_are_those_of_the_policy() -> None:
    """S35: without those that everybody is in by being known; dangling bindings are mentions too."""
    provider = rbac(
        cluster_role("r", STAR),
        bind("r", "Group:devs", "User:alice", "Group:system:authenticated"),
        bind("gone", "Group:ops", namespace="ns1"),
    )
    assert await provider.relevant_groups() == {"devs", "ops", "system:masters"}


def test_the_cache_key_leaves_out_what_does_not_matter() -> None:
    """S57: groups without bindings, names where no rule has names, uid and extra."""
    provider = rbac(
        cluster_role("r", rule("get", "core", "pods"), rule("get", "core", "secrets", "one")),
        bind("r", "Group:devs", "Group:system:authenticated"),
    )
    key = provider.cache_key
    assert key(ask("get", "pods", "ns1", "a", groups=("devs", "x"))) == key(
        ask("get", "pods", "ns1", "b", groups=("devs",))
    )
    first = ask("get", "pods", "ns1", "a")
    assert key(first) == key(Attributes(UserInfo("alice", uid="7", extra=(("k", ("v",)),)), first.request))
    different = [
        first,
        ask("get", "pods", "ns1", "a", groups=("devs",)),
        ask("get", "pods", "ns1", "a", groups=("system:masters",)),
        ask("get", "pods", "ns1", "a", groups=("system:unauthenticated",)),
        ask("get", "pods", "ns1", "a", user="bob"),
        ask("get", "pods", "ns2", "a"),
        ask("list", "pods", "ns1", "a"),
        ask("get", "pods/log", "ns1", "a"),
        ask("get", "secrets", "ns1", "one"),
        ask("get", "secrets", "ns1", "two"),
        ask("get", "namespaces", "", "one"),
        ask("get", "namespaces", "", "two"),
        ask_path("get", "/a"),
        ask_path("get", "/b"),
    ]
    assert len({key(attributes) for attributes in different}) == len(different)


def test_a_terminal_by_websocket_needs_create_as_well() -> None:
    """2.1: the mapper asks for it, and who may only get is refused."""
    mapper = KubernetesAttributes()
    for subresource in ("exec", "attach", "portforward"):
        path = f"/api/v1/namespaces/ns1/pods/web/{subresource}"
        info = mapper.request_info(RequestLine("GET", path, "command=sh", "websocket"))
        also = mapper.also_required(info)
        assert also is not None
        alice = UserInfo("alice")
        for verbs, expected in (("get", False), ("get create", True)):
            provider = only(rule(verbs, "core", f"pods/{subresource}"))
            assert allowed(provider, Attributes(alice, info))
            assert allowed(provider, Attributes(alice, also)) is expected
