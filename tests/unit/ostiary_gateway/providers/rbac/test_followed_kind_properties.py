"""Changes in any order, with watches that end, are cut or expire: it ends in the policy of a fresh list."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.wire.rbac import Binding, Role
from tests.support.rbac_cluster import RbacCluster
from tests.unit.ostiary_gateway.providers.rbac.following import Following, following
from tests.unit.ostiary_gateway.providers.rbac.served_objects import as_served
from tests.unit.ostiary_gateway.providers.rbac.test_properties import Chance

STEPS, QUESTIONS = 25, 40


async def turn(chance: Chance, cluster: RbacCluster) -> None:
    """One thing that happens at the cluster, or between it and us."""
    match chance.random.randrange(12):
        case 0:
            cluster.end_watches()
        case 1:
            cluster.cut()
        case 2:
            cluster.compact()
        case 3:
            # Changes that are told late, or by the next watch.
            cluster.tells = False
        case 4:
            cluster.tells = True
        case 5:
            cluster.send(chance.one(["Role", "RoleBinding", "ClusterRole"]), b'{"type":"WHAT","object":{}}')
        case 6 if chance.random.random() < 0.5:
            await cluster.stop()
            await cluster.start()
        case 7:
            await asyncio.sleep(0)
        case 8 if cluster.state.objects:
            kind, namespace, name = chance.one(sorted(cluster.state.objects))
            cluster.delete(kind, name, namespace)
        case _:
            manifests = chance.policy()
            items: tuple[Role | Binding, ...] = (*manifests.roles, *manifests.bindings[:2])
            for item in items:
                if chance.random.random() < 0.3:
                    cluster.put(item.kind, as_served(item))


async def end_in_the_same_policy(seed: int) -> None:
    chance = Chance(seed)
    async with RbacCluster() as cluster, following(cluster) as follower:
        for _ in range(STEPS):
            await turn(chance, cluster)
            for _ in range(chance.random.randrange(4)):
                await asyncio.sleep(0)
        cluster.cut()
        cluster.tells = True
        await follower.settle()
        fresh = Following(cluster)
        await fresh.policy.load(fresh.reader)
        fresh.reader.close()
        assert_equal(follower.provider, fresh.provider, chance)


def assert_equal(followed: RbacAuthorization, fresh: RbacAuthorization, chance: Chance) -> None:
    assert set(followed.grants()) == set(fresh.grants())
    for _ in range(QUESTIONS):
        attributes = chance.question()
        assert followed.decide(attributes).allowed == fresh.decide(attributes).allowed


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_it_ends_in_the_policy_of_a_fresh_list(seed: int) -> None:
    asyncio.run(end_in_the_same_policy(seed))
