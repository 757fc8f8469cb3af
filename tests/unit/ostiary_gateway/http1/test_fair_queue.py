"""Whose turn it is: between connections, between addresses, and between new requests and backlogs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from ostiary_gateway.http1.fair_queue import FREE_STARTS, SLICE_SECONDS, FairQueue


class Loop:
    """A loop that the test turns."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, work: Callable[[], object]) -> None:
        self.soon.append(work)

    def iterate(self) -> None:
        soon, self.soon = self.soon, []
        for work in soon:
            work()


class Scene:
    """A queue in which ten pieces of work use up a slice."""

    def __init__(self) -> None:
        self.loop, self.time = Loop(), 0.0
        self.queue = FairQueue(cast("asyncio.AbstractEventLoop", self.loop), now=lambda: self.time)
        self.turns: list[str] = []

    def work(self, name: str) -> None:
        self.time += SLICE_SECONDS * 0.101
        self.turns.append(name)

    def connection(self, name: str, pieces: int = 1, *, fails: bool = False) -> Connection:
        return Connection(self, name, pieces, fails)


class Connection:
    def __init__(self, scene: Scene, name: str, pieces: int, fails: bool) -> None:
        self._scene, self._name, self._pieces, self._fails = scene, name, pieces, fails
        self.aborted = False

    def run_turn(self) -> bool:
        self._scene.work(self._name)
        self._pieces -= 1
        if self._fails:
            raise ValueError
        return self._pieces > 0

    def abort(self) -> None:
        self.aborted = True


def test_work_that_arrives_starts_at_once_until_the_time_of_the_iteration_is_used_up() -> None:
    scene = Scene()
    started = 0
    while scene.queue.may_start():
        scene.work("direct")
        started += 1
    assert started == FREE_STARTS + 10
    scene.loop.iterate()
    assert scene.queue.may_start()


def test_a_worker_with_little_to_do_is_not_slowed_down() -> None:
    scene = Scene()
    for _ in range(FREE_STARTS):
        assert scene.queue.may_start()
    assert scene.loop.soon == []


def test_a_backlog_takes_one_slice_of_each_iteration() -> None:
    scene = Scene()
    scene.queue.add(scene.connection("flood", 1000), "192.0.2.1", has_backlog=True)
    for iteration in range(1, 4):
        scene.loop.iterate()
        assert len(scene.turns) == 10 * iteration
        assert len(scene.loop.soon) == 1


def test_each_connection_has_one_turn_a_round() -> None:
    scene = Scene()
    for name in "abc":
        scene.queue.add(scene.connection(name, 3), "192.0.2.1", has_backlog=True)
    scene.loop.iterate()
    assert scene.turns == [*"abcabcabc"]


def test_each_address_has_one_turn_a_round_however_many_connections_it_has() -> None:
    scene = Scene()
    for name in "abc":
        scene.queue.add(scene.connection(name, 2), "192.0.2.1", has_backlog=True)
    scene.queue.add(scene.connection("x", 2), "192.0.2.2", has_backlog=True)
    scene.loop.iterate()
    assert scene.turns == [*"axbxcabc"]


def test_a_single_request_does_not_queue_behind_pipelined_ones() -> None:
    scene = Scene()
    for _ in range(100):
        scene.queue.add(scene.connection("flood", 100), "192.0.2.1", has_backlog=True)
    scene.loop.iterate()
    scene.turns.clear()
    # Behind the same load balancer as the flood.
    scene.queue.add(scene.connection("single"), "192.0.2.1")
    scene.loop.iterate()
    assert scene.turns[0] == "single"


def test_single_requests_do_not_stop_a_backlog() -> None:
    scene = Scene()
    scene.queue.add(scene.connection("backlog", 100), "192.0.2.1", has_backlog=True)
    for _ in range(100):
        scene.queue.add(scene.connection("single"), "192.0.2.2")
    scene.loop.iterate()
    assert scene.turns.count("backlog") == scene.turns.count("single") == 5


def test_a_turn_that_takes_long_ends_the_iteration_but_not_before_both_kinds_had_one() -> None:
    scene = Scene()
    scene.queue.add(scene.connection("backlog", 2), "192.0.2.1", has_backlog=True)
    slow = scene.connection("slow")
    scene.queue.add(slow, "192.0.2.2")
    scene.queue.add(scene.connection("last"), "192.0.2.3")
    original = scene.work

    def work(name: str) -> None:
        original(name)
        scene.time += SLICE_SECONDS if name == "slow" else 0

    scene.work = work  # type: ignore[method-assign]
    scene.loop.iterate()
    assert scene.turns == ["slow", "backlog"]


def test_a_connection_that_fails_is_aborted_and_the_others_have_their_turns() -> None:
    scene = Scene()
    broken = scene.connection("broken", 2, fails=True)
    scene.queue.add(broken, "192.0.2.1")
    scene.queue.add(scene.connection("other"), "192.0.2.2")
    scene.loop.iterate()
    assert broken.aborted
    assert scene.turns == ["broken", "other"]
    assert scene.loop.soon == []
