"""Limits per user and group: who made an object is remembered, also if nobody was there to see it made."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.admission import WriteOutcome, WriteResult
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.providers.object_quota.owners import FORGOTTEN, KIND
from ostiary_gateway.providers.object_quota.settings import ObjectLimit
from ostiary_gateway.providers.object_quota.tally import SPAN_SECONDS
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.providers.object_quota.test_admission import do, field_sum, held, provider, refused
from tests.unit.ostiary_gateway.providers.object_quota.upstreams import ALICE, Object, StoredObjects, pod, write

BOB = UserInfo("bob", groups=("dev",))


def per(*words: str, **more: Any) -> ObjectLimit:
    return ObjectLimit("mine", ("pods",), **{"per": words, "count": 1, **more})


@pytest.fixture
def store(clock: FakeClock) -> MemoryTokenStore:
    return MemoryTokenStore(clock=clock)


@pytest.fixture
def upstream(store: MemoryTokenStore) -> StoredObjects:
    return StoredObjects(store)


@pytest.fixture
def counts(clock: FakeClock) -> MemoryCounts:
    return MemoryCounts(clock=clock)


async def test_each_user_has_a_count_of_their_own(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    """S71."""
    quota = provider(clock, counts, per("user"))
    await do(quota, upstream, write("create", pod("a")))
    assert "exceeded quota: mine" in await refused(quota, upstream, write("create", pod("b"), namespace="other"))
    await do(quota, upstream, write("create", pod("b"), user=BOB))
    assert [row.subject for row in await quota.usage(upstream)] == ["user alice", "user bob"]


async def test_the_members_of_a_group_share_a_count(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    """S71."""
    quota = provider(clock, counts, per("group", groups=frozenset({"dev", "ops"}), count=2))
    await do(quota, upstream, write("create", pod("a")))
    await do(quota, upstream, write("create", pod("b"), user=BOB))
    await refused(quota, upstream, write("create", pod("c"), user=BOB))
    await do(quota, upstream, write("create", pod("c"), user=UserInfo("eve", groups=("ops",))))
    assert not quota.covers(write("create", pod("c"), user=UserInfo("nobody")).attributes)


async def test_a_user_has_a_count_in_each_namespace(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(clock, counts, per("user", "namespace"))
    for namespace in ("team", "other"):
        await do(quota, upstream, write("create", pod("a"), namespace=namespace))
        await refused(quota, upstream, write("create", pod("b"), namespace=namespace))


async def test_what_others_made_or_nobody_knows_does_not_count(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    upstream.serve(write("create", pod("old")))
    await do(provider(clock, counts, per("user")), upstream, write("create", pod("a")))


async def test_owners_outlive_the_gateway(clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects) -> None:
    await do(provider(clock, counts, per("user")), upstream, write("create", pod("a")))
    await refused(provider(clock, MemoryCounts(clock=clock), per("user")), upstream, write("create", pod("b")))


# A name that the client chose counts, also beside a prefix; a generated name has only the beginning of a long prefix.
BODIES: list[Object] = [
    pod("a"),
    {"metadata": {"generateName": "a-", "name": "a-x1"}},
    {"metadata": {"generateName": "a-", "name": "chosen"}},
    {"metadata": {"generateName": "a" * 70, "name": "a" * 58 + "x1y2z"}},
]


@pytest.mark.parametrize("body", BODIES, ids=["name", "prefix", "name and prefix", "long prefix"])
@pytest.mark.parametrize("end", ["died", "unknown", "unreadable"])
async def test_an_owner_is_found_though_nobody_saw_the_answer(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects, store: MemoryTokenStore, body: Object, end: str
) -> None:
    """S71: the gateway dies, the connection is lost, or the answer is in an encoding that cannot be read."""
    quota = provider(clock, counts, per("user"))
    hold = await held(quota, upstream, write("create", body))
    upstream.serve(write("create", body))
    if end == "unknown":
        await hold.settle(WriteResult(WriteOutcome.UNKNOWN))
    elif end == "unreadable":
        await hold.settle(WriteResult(WriteOutcome.DONE, 201, b"k8s\x00..."))
    again = provider(clock, MemoryCounts(clock=clock), per("user"))
    await refused(again, upstream, write("create", pod("b")))
    (kept,) = await store.list_objects(KIND)
    assert "intent" not in kept.name


async def test_an_intent_of_which_nothing_came_is_dropped(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects, store: MemoryTokenStore
) -> None:
    quota = provider(clock, counts, per("user"))
    hold = await held(quota, upstream, write("create", pod("a")))
    assert len(await store.list_objects(KIND)) == 1
    await hold.settle(WriteResult(WriteOutcome.NOT_DONE, 409))
    assert await store.list_objects(KIND) == []


async def test_an_older_object_of_that_name_is_not_taken_for_the_new_one(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    upstream.serve(write("create", pod("a")))
    created = (clock.now() - timedelta(hours=1)).isoformat()
    upstream.stored["pods", "team", "a"]["metadata"]["creationTimestamp"] = created
    quota = provider(clock, counts, per("user", count=2))
    hold = await held(quota, upstream, write("create", pod("a2")))
    await hold.settle(WriteResult(WriteOutcome.UNKNOWN))
    assert await quota.usage(upstream) == []


async def test_whoever_changes_an_object_it_counts_for_its_owner(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    limit = per("user", count=None, sums=(field_sum("2"),), users=frozenset({"alice"}))
    quota = provider(clock, counts, limit)
    await do(quota, upstream, write("create", pod("a", "1")))
    reason = await refused(quota, upstream, write("update", pod("a", "3"), name="a", user=BOB))
    assert "requested: requests.cpu=2, used: requests.cpu=1" in reason
    await do(quota, upstream, write("update", pod("a", "2"), name="a", user=BOB))
    await refused(quota, upstream, write("create", pod("b", "1")))


async def test_an_apply_that_creates_belongs_to_who_applied_it(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(clock, counts, per("user"))
    for _ in range(2):
        await do(quota, upstream, write("patch", {**pod("a"), "apply": True}, name="a"))
    await refused(quota, upstream, write("patch", {**pod("b"), "apply": True}, name="b"))
    await do(quota, upstream, write("delete", name="a"))
    await do(quota, upstream, write("patch", {**pod("b"), "apply": True}, name="b"))


@pytest.mark.parametrize("end", ["readable", "unreadable", "unknown"])
async def test_what_is_deleted_and_created_again_while_it_is_changed_belongs_to_who_changed_it(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects, store: MemoryTokenStore, end: str
) -> None:
    quota = provider(clock, counts, per("user"))
    await do(quota, upstream, write("create", pod("a")))
    change = write("patch", {**pod("a"), "apply": True}, name="a")
    hold = await held(quota, upstream, change)
    upstream.serve(write("delete", name="a"))
    result = upstream.serve(change)
    assert result.status == 201
    if end == "unreadable":
        result = replace(result, body=None)
    await hold.settle(WriteResult(WriteOutcome.UNKNOWN) if end == "unknown" else result)
    again = provider(clock, MemoryCounts(clock=clock), per("user"))
    await refused(again, upstream, write("create", pod("b")))


async def test_a_change_of_what_is_there_writes_nothing_down(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects, store: MemoryTokenStore
) -> None:
    quota = provider(clock, counts, per("user"))
    await do(quota, upstream, write("create", pod("a")))
    before = await store.list_objects(KIND)
    hold = await held(quota, upstream, write("update", pod("a"), name="a"))
    assert not hold.wants_body
    assert await store.list_objects(KIND) == before
    await hold.settle(WriteResult(WriteOutcome.DONE, 200))
    assert await store.list_objects(KIND) == before


async def test_owners_of_what_is_gone_are_forgotten_after_a_while(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects, store: MemoryTokenStore
) -> None:
    quota = provider(clock, counts, per("user", count=3))
    for name in ("a", "b"):
        await do(quota, upstream, write("create", pod(name)))
    await held(quota, upstream, write("create", pod("c")))
    upstream.serve(write("delete", name="a"))
    await quota._reconciliation.forget_owners("cluster", upstream)
    assert len(await store.list_objects(KIND)) == 3, "a list may be older than what it is compared with"
    clock.advance(seconds=FORGOTTEN.total_seconds() + SPAN_SECONDS)
    await quota._reconciliation.forget_owners("cluster", upstream)
    assert len(await store.list_objects(KIND)) == 1


async def test_without_a_place_for_owners_nothing_is_let_through(clock: FakeClock, counts: MemoryCounts) -> None:
    with pytest.raises(ProviderError) as raised:
        await provider(clock, counts, per("user")).reserve(write("create", pod("a")), StoredObjects())
    assert raised.value.cause == "the token store keeps no objects"


class FailingStore(MemoryTokenStore):
    async def put_object(self, *arguments: Any, **more: Any) -> int | None:
        raise ProviderError("the token store cannot be used", cause="down")


async def test_what_cannot_be_written_down_is_not_created(clock: FakeClock, counts: MemoryCounts) -> None:
    upstream = StoredObjects(FailingStore(clock=clock))
    quota = provider(clock, counts, per("user"))
    for _ in range(3):
        with pytest.raises(ProviderError):
            await quota.reserve(write("create", pod("a")), upstream)
    upstream.objects = MemoryTokenStore(clock=clock)
    await do(quota, upstream, write("create", pod("a"), user=replace(ALICE, uid="1")))
