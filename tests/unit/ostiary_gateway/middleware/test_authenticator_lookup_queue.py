"""Turns at the gateway: one flood does not take those of others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.middleware import authenticator as lookup_queue
from ostiary_gateway.middleware.authenticator import LookupQueue


class Visits:
    """Callers of a queue. Each is in its turn until it is let go."""

    def __init__(self, slots: int) -> None:
        self.queue = LookupQueue(slots)
        self.in_turn: list[str] = []
        self._go_on: dict[str, asyncio.Event] = {}

    async def _visit(self, name: str) -> None:
        async with self.queue.turn(name[0]):
            self.in_turn.append(name)
            await self._go_on[name].wait()
        self.in_turn.remove(name)

    async def begin(self, *names: str) -> list[asyncio.Task[None]]:
        """Begin in this order. The first letter of a name is its key."""
        self._go_on |= {name: asyncio.Event() for name in names}
        tasks = [asyncio.create_task(self._visit(name)) for name in names]
        await settled()
        return tasks

    async def end(self, *names: str) -> None:
        for name in names:
            self._go_on[name].set()
            await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def names(key: str, numbers: Sequence[int]) -> list[str]:
    return [f"{key}{number}" for number in numbers]


async def test_one_key_has_half_of_the_slots_at_most() -> None:
    visits = Visits(4)
    await visits.begin(*names("a", range(5)))
    assert visits.in_turn == ["a0", "a1"]
    await visits.begin("b0")
    assert visits.in_turn == ["a0", "a1", "b0"]
    await visits.end("a0")
    assert visits.in_turn == ["a1", "b0", "a2"]


async def test_keys_take_turns_and_each_is_served_in_its_order() -> None:
    visits = Visits(2)
    await visits.begin(*names("a", range(4)), *names("b", range(3)), "c0", "d0")
    order = []
    for _ in range(9):
        order.append(visits.in_turn[0])
        await visits.end(order[-1])
    assert order == ["a0", "b0", "a1", "b1", "c0", "d0", "a2", "b2", "a3"]


async def test_whoever_gives_up_leaves_its_place_to_the_next() -> None:
    visits = Visits(2)
    waiting = (await visits.begin(*names("a", range(4))))[1]
    waiting.cancel()
    await settled()
    await visits.end("a0")
    assert visits.in_turn == ["a2"]


async def test_a_turn_that_comes_while_its_caller_gives_up_goes_to_the_next() -> None:
    visits = Visits(2)
    tasks = await visits.begin(*names("a", range(3)))
    tasks[0].cancel()
    await asyncio.sleep(0)
    tasks[1].cancel()
    await settled()
    assert visits.in_turn[-1] == "a2"


async def test_when_too_many_wait_the_longest_queue_gets_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_queue, "MOST_WAITING", 4)
    visits = Visits(2)
    flood = await visits.begin(*names("a", range(5)))
    refused = (await visits.begin("a5"))[0]
    with pytest.raises(ProviderError, match="too many unknown tokens"):
        await refused
    await visits.begin("b0", "b1")
    with pytest.raises(ProviderError, match="too many unknown tokens"):
        await flood[4]
    assert visits.in_turn == ["a0", "b0"]
    await visits.end("b0")
    assert visits.in_turn == ["a0", "b1"]


async def test_whoever_waits_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_queue, "LONGEST_WAIT", 0.0)
    visits = Visits(2)
    waiting = (await visits.begin("a0", "a1"))[1]
    with pytest.raises(ProviderError) as caught:
        await waiting
    assert caught.value.cause is not None
    assert "its turn did not come" in caught.value.cause
    await visits.end("a0")
    await visits.begin("a2")
    assert visits.in_turn == ["a2"]
