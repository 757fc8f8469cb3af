"""The roles that every cluster begins with."""

from __future__ import annotations

from ostiary.model import UserInfo
from ostiary_gateway.providers.rbac.defaults import DEFAULT_ROLES
from ostiary_gateway.providers.rbac.policy import RbacPolicy
from ostiary_gateway.providers.rbac.provider import rules_for
from ostiary_gateway.wire.rbac import Manifests
from tests.unit.ostiary_gateway.providers.rbac.policies import bind

READ, WRITE = ["get", "list", "watch"], ["create", "delete", "deletecollection", "patch", "update"]


def test_their_lists_are_in_the_order_of_a_cluster() -> None:
    """Kubernetes sorts them when it makes them, and ``kubectl auth can-i --list`` prints them as they come."""
    for rule in (rule for role in DEFAULT_ROLES for rule in role.rules):
        for values in (rule.verbs, rule.resources, rule.non_resource_urls):
            assert list(values) == sorted(set(values))


def test_the_verbs_of_a_resource_come_in_the_order_in_which_a_cluster_tells_them() -> None:
    rules = rules_for(RbacPolicy(Manifests(bindings=(bind("admin", "User:alice"),))).index, UserInfo("alice"), "x")

    def verbs(resource: str) -> list[str]:
        listed = (one.verbs for one in rules.resource_rules if resource in one.resources)
        return list(dict.fromkeys(verb for verbs in listed for verb in verbs))

    assert verbs("pods") == [*WRITE, *READ]
    assert verbs("pods/exec") == [*READ, *WRITE]
    assert verbs("leases") == verbs("rolebindings") == sorted(READ + WRITE)
    assert verbs("events") == [*WRITE, *READ]
