"""The roles that every cluster begins with mean here what they mean there."""

from __future__ import annotations

import pytest

from ostiary.plugins.authorization.rbac.defaults import AGGREGATE_TO
from ostiary.wire.rbac import Role
from tests.unit.plugins.authorization.rbac.policies import ask, ask_path, bind, cluster_role, rbac, rule


def test_everybody_who_is_known_may_look_at_the_api_and_at_themselves() -> None:
    """R11."""
    provider = rbac(defaults=True)
    for path in ("/api", "/apis/apps/v1", "/openapi/v3", "/version"):
        assert provider.decide(ask_path("get", path)).allowed
    review = ask("create", "selfsubjectaccessreviews", group="authorization.k8s.io")
    assert provider.decide(review).allowed
    assert not provider.decide(ask("list", "pods", "ns1")).allowed
    assert not provider.decide(ask_path("get", "/metrics")).allowed
    assert provider.decide(ask_path("get", "/metrics", groups=("system:monitoring",))).allowed


def test_strangers_see_the_health_and_the_version_only() -> None:
    """R11."""
    provider = rbac(defaults=True)
    stranger = {"user": "system:anonymous", "groups": ("system:unauthenticated",)}
    for path in ("/healthz", "/livez", "/readyz", "/version"):
        assert provider.decide(ask_path("get", path, **stranger)).allowed  # type: ignore[arg-type]
    assert not provider.decide(ask_path("get", "/api", **stranger)).allowed  # type: ignore[arg-type]


def test_cluster_admins_may_do_everything() -> None:
    """R11."""
    provider = rbac(bind("cluster-admin", "Group:ops"), defaults=True)
    assert provider.decide(ask("delete", "nodes", groups=("ops",))).allowed
    assert provider.decide(ask_path("post", "/x", groups=("ops",))).allowed


@pytest.mark.parametrize(
    ("name", "may", "may_not"),
    [
        ("view", ["get pods", "list pods/log", "get namespaces"], ["get secrets", "create pods", "get pods/exec"]),
        ("edit", ["get pods", "get secrets", "create pods/exec", "delete services"], ["create roles", "get nodes"]),
        ("admin", ["get pods", "get secrets", "create roles"], ["delete nodes", "escalate roles"]),
    ],
)
def test_view_edit_and_admin_contain_each_other(name: str, may: list[str], may_not: list[str]) -> None:
    """R9, R11: each is made of the one before."""
    provider = rbac(bind(name, "User:alice", namespace="ns1"), defaults=True)

    def allowed(text: str, namespace: str) -> bool:
        verb, resource = text.split()
        group = "rbac.authorization.k8s.io" if resource == "roles" else ""
        return provider.decide(ask(verb, resource, namespace, group=group)).allowed

    assert all(allowed(text, "ns1") for text in may)
    assert not any(allowed(text, "ns1") for text in may_not)
    assert not any(allowed(text, "ns2") for text in may)


def test_a_policy_adds_to_a_default_by_label_and_replaces_one_by_name() -> None:
    """R9, R11."""
    widgets = Role("ClusterRole", "w", rules=(rule("get", "x", "widgets"),), labels=((f"{AGGREGATE_TO}view", "true"),))
    added = rbac(widgets, bind("admin", "User:alice"), defaults=True)
    assert added.decide(ask("get", "widgets", "ns1", group="x")).allowed
    replaced = rbac(cluster_role("view", rule("get", "x", "widgets")), bind("view", "User:alice"), defaults=True)
    assert replaced.decide(ask("get", "widgets", "ns1", group="x")).allowed
    assert not replaced.decide(ask("get", "pods", "ns1")).allowed


def test_without_the_defaults_nobody_has_anything() -> None:
    """R11."""
    provider = rbac(defaults=False)
    assert not provider.decide(ask_path("get", "/version")).allowed
