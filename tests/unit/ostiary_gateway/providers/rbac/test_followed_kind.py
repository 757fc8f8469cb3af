"""A watch that ends, expires, lies or goes back in time: the policy is the cluster's again as soon as that can be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from ostiary_gateway.providers.rbac import followed_kind
from ostiary_gateway.providers.rbac.followed_kind import LASTED_SECONDS, MOST_AFTER_END, MOST_AFTER_FAILURE, Pauses
from ostiary_gateway.testing import FakeClock
from tests.support.rbac_cluster import Asked, Object, RbacCluster, binding, role, rule
from tests.unit.ostiary_gateway.providers.rbac.following import following

API = "rbac.authorization.k8s.io/v1"


@pytest.fixture
async def cluster() -> AsyncIterator[RbacCluster]:
    async with RbacCluster() as made:
        made.put("ClusterRole", role("view", "", rule(["get"], "pods")))
        made.put("RoleBinding", binding("readers", "dev", "view", "alice"))
        yield made


def event(what: str, item: Object, *, kind: str = "RoleBinding", version: str = "999999") -> bytes:
    metadata = {**item.get("metadata", {}), "resourceVersion": version}
    return json.dumps(
        {"type": what, "object": {"kind": kind, "apiVersion": API, **item, "metadata": metadata}}
    ).encode()


EVE = binding("eve", "dev", "view", "eve")


async def test_a_watch_that_ends_goes_on_from_where_it_was(cluster: RbacCluster) -> None:
    """Neither a list nor a gap: what changed in between is told by the next watch."""
    async with following(cluster) as follower:
        for number in range(5):
            await follower.until_watching()
            cluster.tells = False
            cluster.put("RoleBinding", binding(f"b{number}", "dev", "view", f"user-{number}"))
            cluster.end_watches()
            cluster.tells = True
            await follower.until(lambda user=f"user-{number}": follower.allows(user))  # type: ignore[misc]
        assert cluster.count("rolebindings", watch=False) == 1
        assert follower.policy.figures().lists == 4


async def test_a_cut_watch_goes_on_from_where_it_was(cluster: RbacCluster) -> None:
    async with following(cluster) as follower:
        await follower.until_watching()
        cluster.cut()
        cluster.put("RoleBinding", binding("more", "dev", "view", "bob"))
        await follower.until(lambda: follower.allows("bob"))
        assert cluster.count("rolebindings", watch=False) == 1


@pytest.mark.parametrize("way", ["status", "event"])
async def test_an_expired_version_is_listed_again(cluster: RbacCluster, way: str) -> None:
    async with following(cluster) as follower:
        await follower.until_watching()
        cluster.tells = False
        cluster.delete("RoleBinding", "readers", "dev")
        cluster.put("RoleBinding", binding("more", "dev", "view", "bob"))
        cluster.compact()
        if way == "status":
            cluster.cut()
        else:
            gone = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}
            cluster.send("RoleBinding", json.dumps({"type": "ERROR", "object": gone}).encode())
        cluster.tells = True
        await follower.until(lambda: follower.allows("bob"))
        assert not follower.allows("alice")
        assert cluster.count("rolebindings", watch=False) == 2


async def test_what_was_deleted_and_made_again_is_found_by_a_list(cluster: RbacCluster) -> None:
    async with following(cluster) as follower:
        await follower.until_watching()
        cluster.delete("RoleBinding", "readers", "dev")
        await follower.until(lambda: not follower.allows("alice"))
        cluster.tells = False
        cluster.put("RoleBinding", binding("readers", "dev", "view", "alice"))
        cluster.compact()
        cluster.cut()
        cluster.tells = True
        await follower.until(lambda: follower.allows("alice"))


async def test_a_list_whose_token_expires_begins_again(cluster: RbacCluster) -> None:
    cluster.fill("RoleBinding", (binding(f"b{number}", "dev", "view", f"user-{number}") for number in range(1200)))
    compactions: list[int] = []

    async def compact(asked: Asked) -> bool:
        if "continue" in asked.query and len(compactions) < 2:
            compactions.append(1)
            cluster.compact()
        return False

    cluster.script = compact
    async with following(cluster) as follower:
        await follower.until_watching()
        assert follower.allows("user-1199")
        assert cluster.count("rolebindings", watch=False) == 3


LIES = {
    "another kind": event("ADDED", EVE, kind="ClusterRoleBinding"),
    "no name": event("ADDED", {**EVE, "metadata": {"namespace": "dev"}}),
    "no namespace": event("ADDED", {**EVE, "metadata": {"name": "eve"}}),
    "a name that is a path": event("ADDED", {**EVE, "metadata": {"name": "../eve", "namespace": "dev"}}),
    "an unknown type": event("CREATED", EVE),
    "an older version": event("ADDED", EVE, version="5"),
    "no version": event("ADDED", EVE, version=""),
    "an error that is none": b'{"type":"ERROR","object":{"kind":"Status","code":500}}',
    "an object that is a number": b'{"type":"ADDED","object":7}',
    "no JSON": b"<html>",
    "half an event": event("ADDED", EVE)[:-5],
    "not UTF-8": b'{"type":"ADDED","object":{"kind":"\xff"}}',
    "a deep one": b'{"type":"ADDED","object":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_watch_that_lies_gives_nobody_anything(
    cluster: RbacCluster, lie: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(cluster) as follower:
        await follower.until_watching()
        before = cluster.count("rolebindings", watch=True)
        cluster.send("RoleBinding", lie)
        await follower.until(lambda: cluster.count("rolebindings", watch=True) > before)
        await follower.until_watching()
        assert follower.allows("alice")
        assert not follower.allows("eve")
        assert "rolebindings" in caplog.text
        cluster.put("RoleBinding", binding("more", "dev", "view", "bob"))
        await follower.until(lambda: follower.allows("bob"))


async def test_what_came_before_a_lie_counts(cluster: RbacCluster) -> None:
    """A withdrawn right must not wait for the next list, which may fail."""
    async with following(cluster) as follower:
        await follower.until_watching()
        refused = asyncio.Event()

        async def refuse(asked: Asked) -> bool:
            refused.set()
            asked.refuse(500)
            return True

        cluster.script = refuse
        cluster.delete("RoleBinding", "readers", "dev")
        cluster.send("RoleBinding", b"<html>")
        await refused.wait()
        assert not follower.allows("alice")


async def test_a_line_without_an_end_is_not_kept(cluster: RbacCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_kind, "LONGEST_LINE", 100_000)
    sent = 0
    async with following(cluster) as follower:
        await follower.until_watching()

        async def endless(asked: Asked) -> bool:
            nonlocal sent
            if not asked.is_watch or asked.plural != "rolebindings":
                return False
            cluster.script = None
            asked.begin_stream()
            while True:
                asked.writer.write(b"10000\r\n" + b"a" * 65536 + b"\r\n")
                sent += 65536
                await asked.writer.drain()

        cluster.script = endless
        cluster.cut()
        await follower.until(lambda: sent > 0)
        await follower.until_watching()
        assert follower.allows("alice")


async def test_a_cluster_that_goes_back_in_time_is_believed(
    cluster: RbacCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """After a backup was restored, the versions that we know are in its future: it would let us wait for them."""
    backup = cluster.state.copy()
    async with following(cluster) as follower:
        await follower.until_watching()
        cluster.put("RoleBinding", binding("more", "dev", "view", "bob"))
        await follower.until(lambda: follower.allows("bob"))
        cluster.restore(backup)
        await follower.until(lambda: not follower.allows("bob"))
        await follower.until_watching()
        assert follower.allows("alice")
        assert "gone back in time" in caplog.text
        cluster.put("RoleBinding", binding("other", "dev", "view", "carol"))
        await follower.until(lambda: follower.allows("carol"))


async def test_everything_is_listed_again_after_a_while(cluster: RbacCluster) -> None:
    """Whatever a watch has missed, and for whatever reason."""
    clock = FakeClock()
    async with following(cluster, clock=clock, relist=3600) as follower:
        await follower.until_watching()
        cluster.fill("RoleBinding", [binding("silent", "dev", "view", "bob")])
        cluster.state.compacted = 0
        cluster.state.history.clear()
        cluster.end_watches()
        await follower.until_watching()
        assert not follower.allows("bob")
        clock.advance(3600)
        cluster.end_watches()
        await follower.until(lambda: not follower.policy.trouble() and follower.allows("bob"))


UNREADABLE: dict[str, Object] = {
    "subjects": {**EVE, "subjects": "everybody"},
    "a subject": {**EVE, "subjects": [{"kind": "User", "name": 7}]},
    "no role": {"metadata": EVE["metadata"], "subjects": EVE["subjects"]},
}


@pytest.mark.parametrize("broken", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_object_that_cannot_be_understood_is_told_and_gives_nothing(
    cluster: RbacCluster, broken: Object, caplog: pytest.LogCaptureFixture
) -> None:
    """It breaks neither the list nor the watch."""
    cluster.put("RoleBinding", broken)
    async with following(cluster) as follower:
        await follower.until_watching()
        assert follower.allows("alice")
        assert not follower.allows("eve")
        assert follower.policy.figures().unreadable == 1
        assert '"eve"' in caplog.text
        cluster.put("RoleBinding", EVE)
        await follower.until(lambda: follower.allows("eve"))
        cluster.put("RoleBinding", broken)
        await follower.until(lambda: not follower.allows("eve"))
        assert follower.policy.figures().unreadable == 2
        assert cluster.count("rolebindings", watch=False) == 1


async def test_fields_of_a_newer_kubernetes_are_ignored(cluster: RbacCluster) -> None:
    cluster.put("RoleBinding", {**EVE, "conditions": [{"cel": "true"}], "subjects": [{**EVE["subjects"][0], "ttl": 5}]})
    async with following(cluster) as follower:
        await follower.until_watching()
        assert follower.allows("eve")


def endless(asked: Asked, token: str) -> None:
    metadata = {"resourceVersion": "5", "continue": token}
    asked.answer(200, json.dumps({"kind": "RoleBindingList", "apiVersion": API, "metadata": metadata}).encode())


@pytest.mark.parametrize("is_new", [False, True])
async def test_a_list_without_an_end_is_given_up(
    cluster: RbacCluster, caplog: pytest.LogCaptureFixture, is_new: bool
) -> None:
    async def more(asked: Asked) -> bool:
        if asked.plural == "rolebindings":
            endless(asked, str(len(cluster.requests)) if is_new else "same")
        return asked.plural == "rolebindings"

    cluster.script = more
    async with following(cluster) as follower:
        await follower.until(lambda: "does not end" in caplog.text)
        assert follower.policy.trouble()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"kind":"RoleBindingList","apiVersion":"v1","metadata":{"resourceVersion":"5"}}',
        b'{"kind":"PodList","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"resourceVersion":"5"}}',
        b'{"kind":"RoleBindingList","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{}}',
        b'{"kind":"RoleBindingList","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"resourceVersion":"5"},"items":7}',
    ],
)
async def test_what_is_no_list_is_no_empty_policy(
    cluster: RbacCluster, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def lie(asked: Asked) -> bool:
        if asked.plural == "rolebindings":
            asked.answer(200, answer)
        return asked.plural == "rolebindings"

    cluster.script = lie
    async with following(cluster) as follower:
        await follower.until(lambda: "rolebindings cannot be understood" in caplog.text)
        assert follower.policy.trouble()


def test_pauses_grow_and_end_with_a_watch_that_lasted() -> None:
    pauses = Pauses(0.1, lambda: 1.0)
    failures = [pauses.next_pause(lasted=0, failed=True) for _ in range(10)]
    assert failures[:3] == [0.1, 0.2, 0.4]
    assert failures[-1] == MOST_AFTER_FAILURE
    assert pauses.next_pause(lasted=1, failed=False) == MOST_AFTER_END, "a server that ends watches at once"
    assert pauses.next_pause(lasted=LASTED_SECONDS, failed=False) == 0.1
    assert Pauses().next_pause(lasted=0, failed=True) < 0.1, "workers do not come back together"
