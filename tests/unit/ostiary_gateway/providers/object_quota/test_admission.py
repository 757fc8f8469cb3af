"""Admission by object quota: what is reserved, refused, settled and given back."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from ostiary.core.yaml import ConfigReader, Document, Node
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.admission import (
    Admission,
    Hold,
    UpstreamAnswer,
    WriteOutcome,
    WriteRequest,
    WriteResult,
)
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.providers.common.field_path import FieldPath
from ostiary_gateway.providers.object_quota.admission import ObjectQuota
from ostiary_gateway.providers.object_quota.settings import FieldSum, ObjectLimit, ObjectQuotaSettings, QuantityLimit
from ostiary_gateway.providers.object_quota.tally import SPAN_SECONDS
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.quantity import parse_quantity
from tests.unit.ostiary_gateway.providers.object_quota.upstreams import ALICE, Object, StoredObjects, pod, write

CPU = "spec.containers[*].resources.requests.cpu"


def field_sum(limit: str, name: str = "requests.cpu", path: str = CPU) -> FieldSum:
    return FieldSum(name, FieldPath.parse(path), QuantityLimit(limit, parse_quantity(limit)))


def pods(count: int | None = 2, *sums: FieldSum, **more: Any) -> ObjectLimit:
    return ObjectLimit("two", ("pods",), count=count, sums=sums, **more)


@pytest.fixture
def upstream() -> StoredObjects:
    return StoredObjects()


@pytest.fixture
def counts(clock: FakeClock) -> MemoryCounts:
    return MemoryCounts(clock=clock)


def provider(clock: FakeClock, counts: MemoryCounts, *limits: ObjectLimit) -> ObjectQuota:
    return ObjectQuota(ObjectQuotaSettings(limits), clock=clock, counts=counts, name="objects")


async def held(quota: ObjectQuota, upstream: StoredObjects, request: WriteRequest) -> Hold:
    result = await quota.reserve(request, upstream)
    assert hasattr(result, "settle"), result
    return result  # type: ignore[return-value]


async def refused(quota: ObjectQuota, upstream: StoredObjects, request: WriteRequest) -> str:
    result = await quota.reserve(request, upstream)
    assert isinstance(result, Admission), result
    assert not result.admitted
    return result.reason


async def do(quota: ObjectQuota, upstream: StoredObjects, request: WriteRequest) -> WriteResult:
    """All of it: reserved, done, settled."""
    hold = await held(quota, upstream, request)
    result = upstream.serve(request)
    await hold.settle(result)
    return result


# --- numbers of objects ---


async def test_what_was_there_before_counts(clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects) -> None:
    """S71."""
    for number in range(8):
        upstream.serve(write("create", pod(f"old-{number}")))
    quota = provider(clock, counts, pods(9))
    await do(quota, upstream, write("create", pod("ninth")))
    reason = await refused(quota, upstream, write("create", pod("tenth")))
    assert reason == "exceeded quota: two, requested: count/pods=1, used: count/pods=9, limited: count/pods=9"


async def test_what_the_upstream_refuses_is_given_back(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(clock, counts, pods(2))
    await do(quota, upstream, write("create", pod("one")))
    for _ in range(5):
        result = await do(quota, upstream, write("create", pod("one")))
        assert result.outcome is WriteOutcome.NOT_DONE
    await do(quota, upstream, write("create", pod("two")))


async def test_what_is_under_way_counts(clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects) -> None:
    """S71: two at once at the last free place, from two workers: exactly one passes."""
    first, second = (provider(clock, counts, pods(1)) for _ in range(2))
    results = await asyncio.gather(
        first.reserve(write("create", pod("a")), upstream), second.reserve(write("create", pod("b")), upstream)
    )
    assert sorted(isinstance(each, Admission) for each in results) == [False, True]


async def test_namespaces_count_apart(clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects) -> None:
    quota = provider(clock, counts, pods(1))
    for namespace in ("team", "other"):
        await do(quota, upstream, write("create", pod("a"), namespace=namespace))
        await refused(quota, upstream, write("create", pod("b"), namespace=namespace))


async def test_several_resources_count_together(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    limit = ObjectLimit("both", ("pods", "deployments.apps"), count=2, per=("everyone",))
    quota = provider(clock, counts, limit)
    await do(quota, upstream, write("create", pod("a")))
    await do(quota, upstream, write("create", pod("a"), resource="deployments.apps", namespace="other"))
    assert "count/pods+count/deployments.apps=2" in await refused(quota, upstream, write("create", pod("b")))


async def test_a_deletion_frees_a_place_when_a_list_says_so(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    """S71."""
    quota = provider(clock, counts, pods(1))
    await do(quota, upstream, write("create", pod("a")))
    hold = await held(quota, upstream, write("delete", name="a"))
    # The upstream accepts it, and keeps the object until its finalizers are done.
    await hold.settle(WriteResult(WriteOutcome.DONE, 200))
    await refused(quota, upstream, write("create", pod("b")))
    upstream.serve(write("delete", name="a"))
    clock.advance(seconds=1)
    await do(quota, upstream, write("create", pod("b")))


async def test_a_place_is_free_at_once_after_a_deletion_through_the_gateway(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(clock, counts, pods(1))
    await do(quota, upstream, write("create", pod("a")))
    await refused(quota, upstream, write("create", pod("b")))
    await do(quota, upstream, write("delete", name="a"))
    await do(quota, upstream, write("create", pod("b")))


@pytest.mark.parametrize("verb", ["delete", "deletecollection"])
async def test_whoever_deletes_it_is_gone(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects, verb: str
) -> None:
    quota = provider(clock, counts, pods(1, users=frozenset({"alice"})))
    other = write(verb, user=UserInfo("bob"))
    assert quota.covers(other.attributes)
    assert not quota.covers(write("create", user=UserInfo("bob")).attributes)


async def test_a_dry_run_does_not_count(clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects) -> None:
    quota = provider(clock, counts, pods(0))
    await held(quota, upstream, write("create", pod("a"), query="fieldManager=x&dryRun=All"))
    for query in ("dryRun=", "dryrun=All", "xdryRun=All", "dryRun=All2", "dryRun=%41ll"):
        await refused(quota, upstream, write("create", pod("a"), query=query))


async def test_an_update_needs_no_place(clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects) -> None:
    upstream.serve(write("create", pod("a")))
    quota = provider(clock, counts, pods(1))
    await do(quota, upstream, write("patch", {"metadata": {"labels": {"a": "b"}}}, name="a"))
    await do(quota, upstream, write("update", pod("a"), name="a"))


async def test_an_update_that_creates_needs_one(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    """S71: server-side apply."""
    quota = provider(clock, counts, pods(1))
    await do(quota, upstream, write("patch", {**pod("a"), "apply": True}, name="a"))
    await do(quota, upstream, write("patch", {**pod("a"), "apply": True}, name="a"))
    await refused(quota, upstream, write("patch", {**pod("b"), "apply": True}, name="b"))
    await refused(quota, upstream, write("update", pod("b"), name="b"))


async def test_an_update_that_creates_against_expectation_is_counted(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(clock, counts, pods(1))
    await do(quota, upstream, write("create", pod("a")))
    request = write("update", pod("a"), name="a")
    hold = await held(quota, upstream, request)
    await do(quota, upstream, write("delete", name="a"))
    await quota._reconciliation.list_due(upstream)
    result = upstream.serve(request)
    assert result.status == 201
    await hold.settle(result)
    asked = len(upstream.asked)
    await refused(quota, upstream, write("create", pod("b")))
    assert len(upstream.asked) == asked, "it was counted, so that a list need not tell"


# --- sums ---


async def test_a_sum_of_fields_is_bounded(clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects) -> None:
    """S71."""
    quota = provider(clock, counts, pods(None, field_sum("2")))
    await do(quota, upstream, write("create", pod("a", "1", "500m")))
    reason = await refused(quota, upstream, write("create", pod("b", "501m")))
    assert reason == (
        "exceeded quota: two, requested: requests.cpu=501m, used: requests.cpu=1500m, limited: requests.cpu=2"
    )
    await do(quota, upstream, write("create", pod("b", "500m")))
    await do(quota, upstream, write("create", pod("without")))


async def test_what_the_upstream_adds_counts(clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects) -> None:
    """A LimitRange, or a webhook that adds a container: the dry run tells."""
    upstream.adds = pod("x", "2") | {"metadata": {}}
    quota = provider(clock, counts, pods(None, field_sum("3")))
    await do(quota, upstream, write("create", pod("a")))
    await refused(quota, upstream, write("create", pod("b")))


async def test_the_dry_run_is_made_as_the_user_and_with_the_same_bytes(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(clock, counts, pods(None, field_sum("3")))
    request = write("create", pod("a", 1), query="fieldManager=x")
    assert quota.needs_body(request.attributes)
    await do(quota, upstream, request)
    assert ("POST", "/api/v1/namespaces/team/pods?fieldManager=x&dryRun=All", ALICE) in upstream.asked
    assert {user for method, _, user in upstream.asked if method == "GET"} == {None}


async def test_what_the_upstream_would_refuse_is_its_own_answer(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(clock, counts, pods(None, field_sum("3")))
    await do(quota, upstream, write("create", pod("a")))
    answer = await quota.reserve(write("create", pod("a")), upstream)
    assert isinstance(answer, UpstreamAnswer)
    assert (answer.status, json.loads(answer.body)["reason"]) == (409, "AlreadyExists")


@pytest.mark.parametrize("cpu", ["-1", "1e99", "many", [], {"x": 1}, True, "9" * 70])
async def test_what_cannot_be_counted_is_refused(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects, cpu: object
) -> None:
    quota = provider(clock, counts, pods(None, field_sum("3")))
    reason = await refused(quota, upstream, write("create", pod("a", cpu)))
    assert reason.startswith(f"requests.cpu cannot be counted at {CPU}: ")
    await do(quota, upstream, write("create", pod("a", "3")))


async def test_an_update_is_charged_what_it_adds(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    """S71."""
    quota = provider(clock, counts, pods(None, field_sum("3")))
    await do(quota, upstream, write("create", pod("a", "1")))
    await do(quota, upstream, write("create", pod("b", "1")))
    await do(quota, upstream, write("patch", pod("a", "2"), name="a"))
    reason = await refused(quota, upstream, write("update", pod("b", "1500m"), name="b"))
    assert "requested: requests.cpu=500m, used: requests.cpu=3" in reason
    await do(quota, upstream, write("patch", {"metadata": {"labels": {"x": "y"}}}, name="b"))
    await do(quota, upstream, write("patch", pod("a", "1"), name="a"))
    await do(quota, upstream, write("update", pod("b", "2"), name="b"))


async def test_two_updates_at_once_are_both_charged(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(clock, counts, pods(None, field_sum("3")))
    for name in ("a", "b"):
        await do(quota, upstream, write("create", pod(name, "1")))
    first = await held(quota, upstream, write("update", pod("a", "2"), name="a"))
    await refused(quota, upstream, write("update", pod("b", "2"), name="b"))
    await first.settle(WriteResult(WriteOutcome.NOT_DONE, 409))
    await held(quota, upstream, write("update", pod("b", "2"), name="b"))


async def test_scaling_changes_the_sum_of_replicas(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    limit = ObjectLimit("replicas", ("deployments.apps",), sums=(field_sum("5", "replicas", "spec.replicas"),))
    quota = provider(clock, counts, limit)
    deployment: Object = {"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": 2}}
    await do(quota, upstream, write("create", deployment, resource="deployments.apps"))
    scale: Object = {"kind": "Scale", "spec": {"replicas": 6}}
    request = write("patch", scale, name="a", resource="deployments.apps", subresource="scale")
    assert quota.covers(request.attributes)
    assert "requested: replicas=4" in await refused(quota, upstream, request)


async def test_the_status_of_an_object_is_not_held_up(clock: FakeClock, counts: MemoryCounts) -> None:
    quota = provider(clock, counts, pods(None, field_sum("3")))
    assert not quota.covers(write("update", name="a", subresource="status").attributes)
    assert not quota.covers(write("create", name="a", subresource="exec").attributes)
    assert quota.covers(write("create", name="a", subresource="eviction").attributes)
    assert quota.covers(write("patch", name="a", subresource="resize").attributes)


# --- several limits ---


async def test_what_one_limit_refuses_is_not_charged_to_the_others(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(
        clock, counts, replace(pods(1), name="first"), replace(pods(0), name="second", users=frozenset("b"))
    )
    bob = replace(ALICE, username="b")
    for _ in range(3):
        assert "second" in await refused(quota, upstream, write("create", pod("a"), user=bob))
    await do(quota, upstream, write("create", pod("a")))


# --- doubt ---


async def test_what_nobody_knows_stays_reserved_until_a_later_list(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    """S71: the connection is lost, and the upstream may still do it."""
    quota = provider(clock, counts, pods(1))
    hold = await held(quota, upstream, write("create", pod("a")))
    await hold.settle(WriteResult(WriteOutcome.UNKNOWN))
    await refused(quota, upstream, write("create", pod("b")))
    clock.advance(seconds=SPAN_SECONDS - 1)
    await refused(quota, upstream, write("create", pod("b")))
    clock.advance(seconds=2)
    await do(quota, upstream, write("create", pod("b")))


async def test_a_gateway_that_died_leaves_nothing_reserved_for_ever(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    """S71: killed between the reservation and its end, once before and once after the upstream has done it."""
    quota = provider(clock, counts, pods(2))
    await held(quota, upstream, write("create", pod("a")))
    done = write("create", pod("b"))
    await held(quota, upstream, done)
    upstream.serve(done)
    await refused(quota, upstream, write("create", pod("c")))
    clock.advance(seconds=3 * SPAN_SECONDS)
    # Doubtful from here on, and clear a span later.
    await refused(quota, upstream, write("create", pod("c")))
    clock.advance(seconds=SPAN_SECONDS)
    await do(quota, upstream, write("create", pod("c")))
    await refused(quota, upstream, write("create", pod("d")))


async def test_counts_that_are_lost_are_listed_again(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    """As after a restart of the gateway, or of the store that replicas count in."""
    quota = provider(clock, counts, pods(2))
    await do(quota, upstream, write("create", pod("a")))
    await counts.close()
    await do(quota, upstream, write("create", pod("b")))
    await refused(quota, upstream, write("create", pod("c")))


async def test_without_an_upstream_nothing_is_let_through(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    quota = provider(clock, counts, pods(2))
    upstream.down = True
    with pytest.raises(ProviderError):
        await quota.reserve(write("create", pod("a")), upstream)
    upstream.down = False
    await do(quota, upstream, write("create", pod("a")))
    upstream.down = True
    # Known to have room: the upstream need not be asked for the number of objects.
    await held(quota, upstream, write("create", pod("b")))
    await refused(quota, upstream, write("create", pod("c")))
    clock.advance(seconds=1)
    # Nothing is refused on the word of an old list, either.
    with pytest.raises(ProviderError):
        await quota.reserve(write("create", pod("c")), upstream)


class BrokenCounts(MemoryCounts):
    async def update(self, *arguments: Any, **more: Any) -> Any:
        raise OSError("no route to host")


async def test_without_the_counts_nothing_is_let_through(clock: FakeClock, upstream: StoredObjects) -> None:
    """S71."""
    quota = provider(clock, BrokenCounts(clock=clock), pods(2))
    with pytest.raises(ProviderError) as raised:
        await quota.reserve(write("create", pod("a")), upstream)
    assert raised.value.cause == "OSError"


async def test_too_many_subjects_are_refused_and_none_is_forgotten(clock: FakeClock, upstream: StoredObjects) -> None:
    quota = provider(clock, MemoryCounts(clock=clock, wide_limit=3), pods(1))
    for number in range(3):
        await do(quota, upstream, write("create", pod("a"), namespace=f"team-{number}"))
    with pytest.raises(ProviderError) as raised:
        await quota.reserve(write("create", pod("a"), namespace="team-4"), upstream)
    assert raised.value.cause == "too many subjects are counted already"
    await refused(quota, upstream, write("create", pod("b"), namespace="team-0"))


# --- lists ---


async def test_a_list_is_not_believed_if_something_happens_meanwhile(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects
) -> None:
    first, second = (provider(clock, counts, pods(2)) for _ in range(2))
    await do(first, upstream, write("create", pod("a")))
    await do(first, upstream, write("delete", name="a"))
    upstream.gate.clear()
    upstream.reached.clear()
    listing = asyncio.create_task(first._reconciliation.list_due(upstream))
    await upstream.reached.wait()
    hold = await held(second, upstream, write("create", pod("b")))
    upstream.serve(write("create", pod("b")))
    await hold.settle(WriteResult(WriteOutcome.DONE, 201))
    upstream.gate.set()
    await listing
    usage = await first.usage(upstream)
    assert [(row.subject, row.item, row.used, row.limit) for row in usage] == [
        ("namespace team", "count/pods", "1", "2")
    ]
    await do(second, upstream, write("create", pod("c")))
    await refused(second, upstream, write("create", pod("d")))


async def test_what_others_create_is_seen_and_told(
    clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller does not come through the gateway: the interval brings it to light."""
    caplog.set_level("INFO")
    quota = provider(clock, counts, pods(3))
    await do(quota, upstream, write("create", pod("a")))
    for name in ("b", "c"):
        upstream.serve(write("create", pod(name)))
    clock.advance(seconds=301)
    await quota._reconciliation.list_due(upstream)
    (record,) = [record for record in caplog.records if "differed" in record.message]
    assert (record.__dict__["counted"], record.__dict__["listed"]) == ("count/pods=1", "count/pods=3")
    await refused(quota, upstream, write("create", pod("d")))


async def test_a_list_without_end_is_refused(clock: FakeClock, counts: MemoryCounts, upstream: StoredObjects) -> None:
    class Endless(StoredObjects):
        async def ask(self, *arguments: Any, **more: Any) -> UpstreamAnswer:
            return UpstreamAnswer(200, "application/json", b'{"items": [], "metadata": {"continue": "on"}}')

    with pytest.raises(ProviderError):
        await provider(clock, counts, pods(3)).reserve(write("create", pod("a")), Endless())


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"items": 5}', b'{"items": [5]}', b"\xff"])
async def test_an_answer_that_is_no_list_is_no_empty_list(clock: FakeClock, counts: MemoryCounts, body: bytes) -> None:
    class Odd(StoredObjects):
        async def ask(self, *arguments: Any, **more: Any) -> UpstreamAnswer:
            return UpstreamAnswer(200, "application/json", body)

    with pytest.raises(ProviderError):
        await provider(clock, counts, pods(3)).reserve(write("create", pod("a")), Odd())


# --- settings ---


def test_a_mistake_in_the_settings_stops_the_start(subtests: pytest.Subtests) -> None:
    cases = [
        ({"name": "a", "resources": ["pods"]}, "needs count, sums, or both"),
        ({"name": "a", "resources": ["Pods!"], "count": 1}, "expected a resource"),
        ({"name": "a", "resources": [], "count": 1}, "it is missing"),
        ({"name": "a", "resources": ["pods"], "count": -1}, "must not be negative"),
        ({"name": "a", "resources": ["pods"], "count": 1, "per": ["nobody"]}, "expected one or more of"),
        ({"name": "a", "resources": ["pods"], "count": 1, "per": ["everyone", "namespace"]}, "everyone stands alone"),
        ({"name": "a", "resources": ["pods"], "sums": [{"name": "x", "path": "a b", "limit": 1}]}, "cannot be read"),
        ({"name": "a", "resources": ["pods"], "sums": [{"name": "x", "limit": 1}]}, "it is missing"),
        ({"name": "a", "resources": ["pods"], "sums": [{"name": "x", "path": "a", "limit": "-1"}]}, "negative"),
        ({"name": "a", "resources": ["pods"], "sums": [{"name": "x", "path": "a", "limit": "x"}]}, "a quantity"),
    ]
    for limit, problem in cases:
        with subtests.test(limit=limit, problem=problem):

            def node(value: Any) -> Node:
                if isinstance(value, dict):
                    return Node({key: node(each) for key, each in value.items()})
                return Node([node(each) for each in value] if isinstance(value, list) else value)

            reading = ConfigReader(Document(node({"limits": [limit]})))
            ObjectQuota.from_config(reading.root, Context("objects"))
            assert any(problem in each.message for each in reading.problems), reading.problems
