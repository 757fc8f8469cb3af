"""Who gains and who loses what between two policies."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.policy.diff import Change, Effect, differences
from ostiary_gateway.policy.source import OpenedPolicy
from ostiary_gateway.wire.rbac import Binding, Role
from tests.unit.ostiary_gateway.providers.rbac.policies import bind, cluster_role, rbac, role, rule, urls

ALICE, DEV = Subject("User", "alice"), Subject("Group", "dev")
ROBOT = Subject("ServiceAccount", "robot", "auth")
READ = rule("get list", "core", "pods")


def policy(items: Sequence[object]) -> OpenedPolicy:
    provider = rbac(*(one for one in items if isinstance(one, Role | Binding)), defaults=True)
    return OpenedPolicy(Authorizer([Link("rbac", provider)]), ((provider, ("",)),))


async def diff(old: Sequence[object], new: Sequence[object]) -> list[Change]:
    return list(await differences(policy(old), policy(new)))


async def test_the_same_policy_differs_in_nothing() -> None:
    items = [cluster_role("r", READ, urls("get", "/x /y/*")), bind("r", "User:alice", "Group:dev")]
    assert await diff(items, items) == []


async def test_a_new_binding_is_a_gain_and_a_lost_one_a_loss() -> None:
    """Idea 3."""
    old = [role("r", "team", READ), bind("r", "User:alice", namespace="team", role_kind="Role")]
    new = [role("r", "team", READ), bind("r", "Group:dev", namespace="team", role_kind="Role")]
    assert await diff(old, new) == [
        Change(Effect.LOSS, ALICE, ("get", "list"), ("pods",), namespace="team"),
        Change(Effect.GAIN, DEV, ("get", "list"), ("pods",), namespace="team"),
    ]


async def test_moving_rules_about_changes_nothing() -> None:
    old = [cluster_role("r", rule("get list", "core", "pods services")), bind("r", "User:alice")]
    new = [
        *(
            cluster_role("a", rule("get", "core", "pods"), rule("list", "core", "services pods")),
            bind("a", "User:alice"),
        ),
        *(cluster_role("b", rule("get", "core", "services")), bind("b", "User:alice")),
    ]
    assert await diff(old, new) == []


async def test_a_star_is_more_than_all_that_is_named() -> None:
    old = [cluster_role("r", READ), bind("r", "User:alice")]
    new = [cluster_role("r", rule("*", "core", "pods")), bind("r", "User:alice")]
    assert await diff(old, new) == [Change(Effect.GAIN, ALICE, ("*",), ("pods",))]
    assert await diff(new, old) == [Change(Effect.LOSS, ALICE, ("*",), ("pods",))]


async def test_from_the_cluster_to_a_namespace_is_a_loss() -> None:
    old = [cluster_role("r", READ), bind("r", "User:alice")]
    new = [cluster_role("r", READ), bind("r", "User:alice", namespace="team")]
    assert await diff(old, new) == [Change(Effect.LOSS, ALICE, ("get", "list"), ("pods",))]


async def test_what_everybody_has_is_lost_by_nobody() -> None:
    old = [cluster_role("r", READ), bind("r", "User:alice", ROBOT)]
    new = [cluster_role("r", READ), bind("r", "Group:system:authenticated")]
    everybody = Subject("Group", "system:authenticated")
    assert await diff(old, new) == [Change(Effect.GAIN, everybody, ("get", "list"), ("pods",))]


async def test_paths_names_and_service_accounts_are_told() -> None:
    old = [cluster_role("r", rule("get", "core", "secrets", "a b")), bind("r", ROBOT)]
    new = [
        cluster_role("r", rule("get", "core", "secrets", "a"), urls("get", "/m")),
        bind("r", ROBOT),
    ]
    assert set(await diff(old, new)) == {
        Change(Effect.LOSS, ROBOT, ("get",), ("secrets",), name="b"),
        Change(Effect.GAIN, ROBOT, ("get",), paths=("/m",)),
    }


POLICIES = st.lists(
    st.tuples(
        st.sampled_from(["get", "get list", "*"]),
        st.sampled_from(["pods", "pods secrets", "*"]),
        st.sampled_from(["User:alice", "Group:dev"]),
        st.sampled_from(["", "team"]),
    ),
    max_size=3,
)


@settings(max_examples=40, deadline=None)
@given(POLICIES, POLICIES)
async def test_the_way_back_is_the_opposite(one: list[tuple[str, ...]], other: list[tuple[str, ...]]) -> None:
    def items(found: list[tuple[str, ...]]) -> list[Role | Binding]:
        made: list[Role | Binding] = []
        for number, (verbs, resources, who, namespace) in enumerate(found):
            made += [
                cluster_role(f"r{number}", rule(verbs, "core", resources)),
                bind(f"r{number}", who, namespace=namespace),
            ]
        return made

    there, back = await diff(items(one), items(other)), await diff(items(other), items(one))

    def turned(changes: list[Change], effect: Effect) -> set[tuple[object, ...]]:
        return {
            (one.subject, verb, kind, one.namespace)
            for one in changes
            if one.effect is effect
            for verb in one.verbs
            for kind in one.resources
        }

    assert turned(there, Effect.GAIN) == turned(back, Effect.LOSS)
    assert turned(there, Effect.LOSS) == turned(back, Effect.GAIN)
