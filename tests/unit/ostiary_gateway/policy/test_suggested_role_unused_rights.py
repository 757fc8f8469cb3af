"""What a policy gives and nobody used."""

from __future__ import annotations

from datetime import UTC, datetime

from ostiary.core.policy_rules import PolicyRule
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.policy.suggested_role import UnusedRight, unused_rights
from ostiary_gateway.policy.usage import Right, SubjectUse, Use
from tests.unit.ostiary_gateway.providers.rbac.policies import bind, cluster_role, rbac, rule

AT = datetime(2026, 1, 1, tzinfo=UTC)
ALICE = Subject("User", "alice")


def unused(*rights: Right, roles: object, groups: tuple[str, ...] = ()) -> tuple[UnusedRight, ...]:
    use = SubjectUse(ALICE, {right: Use(1, AT, AT) for right in rights}, groups=set(groups))
    assert isinstance(roles, tuple)
    return unused_rights(use, rbac(*roles).grants())


GET_PODS = Right("get", "team", "", "pods")


def test_the_parts_of_a_rule_that_were_not_used_are_told() -> None:
    policy = (cluster_role("r", rule("get list delete", "core", "pods secrets")), bind("r", "User:alice"))
    (told,) = unused(GET_PODS, Right("get", "", "", "secrets"), roles=policy)
    assert told.rules == (PolicyRule(("delete", "list"), ("",), ("pods", "secrets")),)
    assert (told.never, told.wider) == (False, False)


def test_a_rule_that_was_used_to_the_last_bit_is_not_told() -> None:
    policy = (cluster_role("r", rule("get", "core", "pods")), bind("r", "User:alice"))
    assert unused(GET_PODS, roles=policy) == ()
    (told,) = unused(roles=policy)
    assert told.never


def test_a_star_that_was_used_is_told_to_be_wider_than_the_use() -> None:
    policy = (cluster_role("r", rule("*", "*", "*")), bind("r", "User:alice"))
    (told,) = unused(GET_PODS, roles=policy)
    assert (told.never, told.wider, told.rules) == (False, True, ())
    assert told.whole == PolicyRule(("*",), ("*",), ("*",))


def test_a_rule_in_another_namespace_was_not_used() -> None:
    policy = (cluster_role("r", rule("get", "core", "pods")), bind("r", "User:alice", namespace="other"))
    (told,) = unused(GET_PODS, roles=policy)
    assert (told.never, told.namespace) == (True, "other")
    assert unused(Right("get", "other", "", "pods"), roles=policy) == ()


def test_rights_through_groups_count_and_those_of_others_do_not() -> None:
    policy = (
        cluster_role("r", rule("get", "core", "nodes")),
        bind("r", "Group:dev"),
        cluster_role("s", rule("get", "core", "secrets")),
        bind("s", "User:bob"),
    )
    assert unused(GET_PODS, roles=policy) == ()
    (told,) = unused(GET_PODS, roles=policy, groups=("dev",))
    assert (told.subject.kind, told.subject.name) == ("Group", "dev")


def test_of_a_group_its_own_rules_are_told_and_not_those_of_its_members() -> None:
    policy = rbac(
        cluster_role("r", rule("get", "core", "nodes")),
        bind("r", "Group:dev"),
        cluster_role("s", rule("get", "core", "secrets")),
        bind("s", "Group:ops"),
    )
    use = SubjectUse(Subject("Group", "dev"), groups={"dev", "ops"})
    assert [told.subject.name for told in unused_rights(use, policy.grants())] == ["dev"]


def test_a_service_account_may_be_named_as_a_user_and_other_namespaces_can_be_left_out() -> None:
    policy = rbac(
        cluster_role("r", rule("get", "core", "nodes")),
        bind("r", "User:system:serviceaccount:shop:builder"),
        cluster_role("s", rule("get", "core", "secrets")),
        bind("s", Subject("ServiceAccount", "builder", "shop"), namespace="other"),
    )
    use = SubjectUse(Subject("ServiceAccount", "builder", "shop"))
    assert len(unused_rights(use, policy.grants())) == 2
    assert len(unused_rights(use, policy.grants(), frozenset({"team"}))) == 1


def test_discovery_is_not_told() -> None:
    use = SubjectUse(ALICE, groups={"system:authenticated"})
    grants = rbac(defaults=True).grants()
    assert any(grant.subject.name == "system:authenticated" for grant in grants)
    assert unused_rights(use, grants) == ()
