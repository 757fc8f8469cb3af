"""The policy of a cluster decides here as it does there: from the first list on, and after each change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.testing import FakeClock
from tests.support.rbac_cluster import Asked, RbacCluster, binding, role, rule
from tests.unit.ostiary_gateway.providers.rbac.following import Following, following
from tests.unit.ostiary_gateway.providers.rbac.policies import ask

READ_PODS = rule(["get", "list"], "pods")


@pytest.fixture
async def cluster() -> AsyncIterator[RbacCluster]:
    async with RbacCluster() as made:
        made.put("ClusterRole", role("view", "", READ_PODS))
        made.put("RoleBinding", binding("readers", "dev", "view", "alice"))
        yield made


async def test_what_the_cluster_has_decides(cluster: RbacCluster) -> None:
    cluster.put("Role", role("local", "dev", rule(["delete"], "pods")))
    cluster.put("RoleBinding", binding("cleaners", "dev", "local", "carol", role_kind="Role"))
    cluster.put("ClusterRoleBinding", binding("auditors", "", "view", "dora"))
    async with following(cluster) as follower:
        await follower.until_watching()
        assert follower.allows("alice")
        assert not follower.allows("alice", "delete")
        assert not follower.allows("alice", namespace="prod")
        assert follower.allows("carol", "delete")
        assert follower.allows("dora", namespace="prod")
        assert not follower.allows("bob")


async def test_the_cluster_has_its_own_roles_and_none_are_added(cluster: RbacCluster) -> None:
    """A cluster without "edit" has no "edit". Its first administrators need no role."""
    cluster.put("RoleBinding", binding("editors", "dev", "edit", "bob"))
    async with following(cluster) as follower:
        await follower.until_watching()
        assert not follower.allows("bob")
        assert follower.provider.decide(ask("get", "pods", "dev", groups=["system:masters"])).allowed
        assert "edit" in follower.provider.explain(ask("get", "pods", "dev", user="bob")).decision.reason


async def test_an_aggregated_role_has_the_rules_that_its_controller_wrote(cluster: RbacCluster) -> None:
    part = role("part", "", rule(["delete"], "pods"))
    part["metadata"]["labels"] = {"into": "whole"}
    cluster.put("ClusterRole", part)
    whole = {
        **role("whole", "", READ_PODS),
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"into": "whole"}}]},
    }
    cluster.put("ClusterRole", whole)
    cluster.put("RoleBinding", binding("w", "dev", "whole", "bob"))
    async with following(cluster) as follower:
        await follower.until_watching()
        assert follower.allows("bob")
        # Not yet: the controller has not written it.
        assert not follower.allows("bob", "delete")


async def test_a_change_comes_into_force(cluster: RbacCluster) -> None:
    async with following(cluster) as follower:
        await follower.until_watching()
        before = follower.provider.revision
        cluster.put("RoleBinding", binding("readers", "dev", "view", "bob"))
        await follower.until(lambda: follower.allows("bob"))
        assert not follower.allows("alice")
        assert follower.provider.revision != before
        cluster.delete("RoleBinding", "readers", "dev")
        await follower.until(lambda: not follower.allows("bob"))
        cluster.put("RoleBinding", binding("readers", "dev", "view", "carol"))
        cluster.put("ClusterRole", role("view", "", rule(["delete"], "pods")))
        await follower.until(lambda: follower.allows("carol", "delete"))
        assert not follower.allows("carol", "get")
        cluster.delete("ClusterRole", "view")
        await follower.until(lambda: not follower.allows("carol", "delete"))
        assert follower.policy.figures().objects == 1
        assert cluster.count("rolebindings", watch=False) == 1


async def test_a_long_list_comes_in_pages(cluster: RbacCluster) -> None:
    cluster.fill("RoleBinding", (binding(f"b{number}", "dev", "view", f"user-{number}") for number in range(1234)))
    async with following(cluster) as follower:
        await follower.until_watching()
        assert follower.allows("user-0")
        assert follower.allows("user-1233")
        assert not follower.allows("user-1234")
        assert sum("/rolebindings?limit" in target for target in cluster.requests) == 5
        assert follower.policy.figures().objects == 1236


async def test_before_the_first_list_nobody_can_be_asked(cluster: RbacCluster) -> None:
    release = asyncio.Event()

    async def hold(asked: Asked) -> bool:
        await release.wait()
        return False

    cluster.script = hold
    async with following(cluster) as follower:
        await follower.until(lambda: len(cluster.requests) == 4)
        with pytest.raises(ProviderError, match="has not been read yet"):
            follower.allows("alice")
        with pytest.raises(ProviderError):
            await follower.provider.relevant_groups()
        assert follower.policy.trouble() == "its policy has not been read yet"
        assert follower.policy.figures().age is None
        revision = follower.provider.revision
        release.set()
        await follower.until(lambda: not follower.policy.trouble())
        assert follower.allows("alice")
        assert follower.provider.revision != revision


async def test_one_kind_that_may_not_be_read_leaves_no_policy(
    cluster: RbacCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a policy would be another one."""

    async def refuse(asked: Asked) -> bool:
        if asked.plural == "clusterroles":
            asked.refuse(403)
        return asked.plural == "clusterroles"

    cluster.script = refuse
    async with following(cluster) as follower:
        await follower.until(lambda: cluster.watches == 3 and "may not list clusterroles" in caplog.text)
        with pytest.raises(ProviderError) as raised:
            follower.allows("alice")
        assert "may not list clusterroles there (status 403)" in str(raised.value.cause)
        cluster.script = None
        await follower.until_watching()
        assert follower.allows("alice")


async def test_an_outage_leaves_the_last_policy_in_force_until_it_is_too_old(cluster: RbacCluster) -> None:
    clock = FakeClock()
    async with following(cluster, clock=clock, max_stale=60) as follower:
        await follower.until_watching()
        revision = follower.provider.revision
        await cluster.stop()
        clock.advance(60)
        assert follower.allows("alice")
        assert follower.provider.revision == revision
        assert follower.policy.figures().age == 60
        clock.advance(1)
        with pytest.raises(ProviderError, match="was not confirmed for 61 s"):
            follower.allows("alice")
        assert follower.provider.revision != revision, "what was decided before counts no more"
        assert follower.policy.trouble() == "its policy is older than 1m"
        await cluster.start()
        await follower.until(lambda: not follower.policy.trouble())
        assert follower.allows("alice")
        assert follower.provider.revision == revision, "the same policy is in force again"


async def test_a_bookmark_shows_that_the_cluster_is_there(cluster: RbacCluster) -> None:
    clock = FakeClock()
    async with following(cluster, clock=clock, max_stale=60) as follower:
        await follower.until_watching()
        clock.advance(50)
        cluster.bookmark()
        await follower.until(lambda: follower.policy.figures().age == 0)
        clock.advance(50)
        assert follower.allows("alice")


async def test_a_policy_that_is_too_large_is_not_used(cluster: RbacCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.put("RoleBinding", binding("many", "dev", "view", *(f"user-{number}" for number in range(100))))
    async with following(cluster, max_entries=100) as follower:
        await follower.until(lambda: "more than 100 entries" in caplog.text)
        with pytest.raises(ProviderError) as raised:
            follower.allows("alice")
        assert "from.maxEntries" in str(raised.value.cause)
        assert follower.policy.figures().objects <= 2


async def test_a_policy_that_becomes_too_large_is_used_until_it_is_too_old(
    cluster: RbacCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with following(cluster, clock=clock, max_stale=60, max_entries=100) as follower:
        await follower.until_watching()
        cluster.put("RoleBinding", binding("many", "dev", "view", *(f"user-{number}" for number in range(100))))
        await follower.until(lambda: "more than 100 entries" in caplog.text)
        assert follower.allows("alice")
        clock.advance(61)
        cluster.bookmark()
        attempts = len(cluster.requests) + 3
        await follower.until(lambda: len(cluster.requests) > attempts)
        with pytest.raises(ProviderError) as raised:
            follower.allows("alice")
        assert "from.maxEntries" in str(raised.value.cause)
        cluster.delete("RoleBinding", "many", "dev")
        cluster.bookmark()
        await follower.until(lambda: not follower.policy.trouble())


async def test_the_next_configuration_goes_on_without_a_list(cluster: RbacCluster) -> None:
    async with following(cluster) as follower:
        await follower.until_watching()
        await follower.stop()
        cluster.put("RoleBinding", binding("more", "dev", "view", "bob"))
        after = Following(cluster)
        assert after.policy.adopt(follower.policy)
        assert after.allows("alice"), "there is no gap"
        after.start()
        await after.until(lambda: after.allows("bob"))
        await after.stop()
        assert cluster.count("rolebindings", watch=False) == 1
        assert not Following(cluster, max_entries=1).policy.adopt(after.policy), "it would be too large"


async def test_what_it_may_not_read_is_told_before_it_is_needed(cluster: RbacCluster) -> None:
    follower = Following(cluster)
    assert "can be listed and watched" in await follower.policy.probe(follower.reader)

    async def refuse(asked: Asked) -> bool:
        if asked.is_watch:
            asked.refuse(403)
        return asked.is_watch

    cluster.script = refuse
    with pytest.raises(ProviderError) as raised:
        await follower.policy.probe(follower.reader)
    assert "may not watch roles" in str(raised.value.cause)
    follower.reader.close()
