"""A server that accepts watches and tells nothing, never ends them, repeats itself or stores enormous objects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from ostiary_gateway.providers.rbac import followed_kind
from ostiary_gateway.providers.rbac.followed_kind import list_kind
from ostiary_gateway.testing import FakeClock
from tests.support.rbac_cluster import Asked, RbacCluster, binding, role, rule
from tests.unit.ostiary_gateway.providers.rbac.following import following, reader_of

API = "rbac.authorization.k8s.io/v1"
# Longer than any watch may last.
LONG = 320.0


@pytest.fixture
async def cluster() -> AsyncIterator[RbacCluster]:
    async with RbacCluster() as made:
        made.put("ClusterRole", role("view", "", rule(["get"], "pods")))
        made.put("RoleBinding", binding("readers", "dev", "view", "alice"))
        yield made


async def test_an_object_that_no_watch_can_carry_does_not_keep_a_right(
    cluster: RbacCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may make bindings in one namespace could so keep everybody's rights: each watch would end there."""
    monkeypatch.setattr(followed_kind, "LONGEST_LINE", 100_000)
    clock = FakeClock()
    async with following(cluster, clock=clock) as follower:
        await follower.until_watching()
        cluster.put("RoleBinding", binding("long", "dev", "view", "a" * 2_000_000))
        cluster.delete("RoleBinding", "readers", "dev")
        watches = cluster.count("rolebindings", watch=True)
        await follower.until(lambda: cluster.count("rolebindings", watch=True) > watches + 2)
        assert follower.allows("alice"), "it is listed again after a while only"
        clock.advance(LONG)
        await follower.until(lambda: not follower.allows("alice"))
        cluster.put("RoleBinding", binding("more", "dev", "view", "bob"))
        await follower.until(lambda: follower.allows("bob"))


async def test_watches_that_are_accepted_and_cut_do_not_keep_a_right(cluster: RbacCluster) -> None:
    clock = FakeClock()
    async with following(cluster, clock=clock) as follower:
        await follower.until_watching()

        async def accept_and_cut(asked: Asked) -> bool:
            if asked.is_watch:
                asked.begin_stream()
                await asked.writer.drain()
                asked.writer.transport.abort()
            return asked.is_watch

        cluster.script = accept_and_cut
        cluster.cut()
        cluster.delete("RoleBinding", "readers", "dev")
        watches = cluster.count("rolebindings", watch=True)
        await follower.until(lambda: cluster.count("rolebindings", watch=True) > watches + 2)
        clock.advance(LONG)
        await follower.until(lambda: not follower.policy.trouble() and not follower.allows("alice"))


async def test_a_watch_that_is_never_ended_does_not_put_off_the_next_list(cluster: RbacCluster) -> None:
    clock = FakeClock()
    async with following(cluster, clock=clock, relist=3600, max_stale=7200) as follower:
        await follower.until_watching()
        cluster.fill("RoleBinding", [binding("missed", "dev", "view", "bob")])
        cluster.state.compacted = 0
        clock.advance(3600)
        cluster.bookmark()
        await follower.until(lambda: follower.allows("bob"))


async def test_an_object_that_is_listed_twice_counts_once(cluster: RbacCluster) -> None:
    twice = binding("twice", "dev", "view", "alice", "bob")

    async def repeat(asked: Asked) -> bool:
        metadata = {"resourceVersion": "5"} | ({} if "continue" in asked.query else {"continue": "more"})
        page = {"kind": "RoleBindingList", "apiVersion": API, "metadata": metadata, "items": [twice, twice]}
        asked.answer(200, json.dumps(page).encode())
        return True

    cluster.script = repeat
    reader = reader_of(cluster)
    rooms: list[int] = []
    try:
        listed = await list_kind(reader, "RoleBinding", check_room=rooms.append)
    finally:
        reader.close()
    assert (len(listed.objects), listed.entries) == (1, 2)
    assert rooms == [4, 8], "what is read is bounded all the same"


async def test_enormous_names_do_not_fit_into_a_policy_of_few_entries(cluster: RbacCluster) -> None:
    async with following(cluster, max_entries=50) as follower:
        await follower.until_watching()
        lists = cluster.count("rolebindings", watch=False)
        cluster.put("RoleBinding", binding("large", "dev", "view", "a" * 100_000))
        await follower.until(lambda: cluster.count("rolebindings", watch=False) > lists)
        assert not follower.allows("a" * 100_000)


async def test_the_first_list_in_many_pages_is_whole(cluster: RbacCluster) -> None:
    cluster.fill("RoleBinding", (binding(f"b{number}", "dev", "view", f"user-{number}") for number in range(2000)))
    async with following(cluster) as follower:
        await follower.until_watching()
        assert follower.policy.figures().objects == 2002
        assert all(follower.allows(f"user-{number}") for number in range(0, 2000, 99))
