"""Revocations are followed, and nothing remembered outlives the last answer by more than `max_stale`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.middleware.bearer import RevokedTokens
from ostiary_gateway.middleware.revocation_follower import RevocationFollower
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials

MAX_STALE = 8.0


def listed(head: int, *ids: str, issuer: str = "") -> RevokedCredentials:
    return RevokedCredentials(issuer, (), head, credential_ids=ids)


class Gateway:
    """Answers with the next of `answers`; an exception is raised, and a callable is awaited."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int | None, int]] = []

    async def fetch(self, after: int | None, wait: int) -> RevokedCredentials:
        self.asked.append((after, wait))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        listed: RevokedCredentials = await answer() if callable(answer) else answer
        return listed


class World:
    def __init__(self, *answers: Any) -> None:
        self.clock, self.gateway = FakeClock(), Gateway(*answers)
        self.changes: list[tuple[int, bool]] = []
        self.follower = RevocationFollower(
            self.gateway.fetch, max_stale=MAX_STALE, clock=self.clock, on_revoked=self._note
        )

    def _note(self, revoked: RevokedTokens, everything: bool) -> None:
        self.changes.append((revoked.head, everything))


DOWN = ProviderError("the gateway is unavailable", cause="host: the connection failed", hint="look there")


async def test_an_answer_counts_from_when_it_was_asked_for() -> None:
    world = World()
    world.gateway.answers = [lambda: late(world, listed(1))]
    await world.follower.ensure_fresh()
    assert not world.follower.is_stale
    world.clock.advance(MAX_STALE - 3)
    assert world.follower.is_stale


async def late(world: World, answer: RevokedCredentials) -> RevokedCredentials:
    world.clock.advance(3)
    return answer


async def test_nobody_is_asked_while_the_last_answer_holds() -> None:
    world = World(listed(1))
    await world.follower.ensure_fresh()
    await world.follower.ensure_fresh()
    assert world.gateway.asked == [(None, 0)]


async def test_many_who_find_it_stale_ask_once() -> None:
    world = World(listed(1))
    await asyncio.gather(*(world.follower.ensure_fresh() for _ in range(10)))
    assert len(world.gateway.asked) == 1


async def test_after_a_gap_everything_is_forgotten() -> None:
    """A revocation may have come and left the list again."""
    world = World(listed(1), listed(1))
    await world.follower.ensure_fresh()
    world.clock.advance(MAX_STALE)
    await world.follower.ensure_fresh()
    assert world.changes == [(1, True), (1, True)]


async def test_a_log_that_goes_back_is_another_log() -> None:
    """The token store was restored, or exchanged."""
    world = World(listed(5), listed(2))
    await world.follower._poll()
    world.clock.advance(1)
    await world.follower._poll()
    assert world.changes[-1] == (2, True)


async def test_an_older_answer_does_not_take_the_place_of_a_newer_one() -> None:
    """What was asked for first may come last."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> RevokedCredentials:
        asked.set()
        await go_on.wait()
        return listed(1)

    world = World(slow, listed(2, "x"))
    first = asyncio.create_task(world.follower._poll())
    await asked.wait()
    world.clock.advance(1)
    await world.follower._poll()
    go_on.set()
    await first
    assert world.follower.tokens.head == 2


async def test_news_that_was_waited_for_counts_though_it_was_asked_for_first() -> None:
    world = World()
    world.gateway.answers = [listed(1), lambda: waited(world)]
    await world.follower._poll()
    world.clock.advance(1)
    await world.follower._poll()
    assert world.follower.tokens.head == 2


async def waited(world: World) -> RevokedCredentials:
    """While a long question waits, a request asks and is told of nothing new."""
    world.clock.advance(1)
    world.follower._apply(listed(1), world.clock.monotonic())
    return listed(2)


async def test_a_failure_is_told_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    world = World(listed(1), DOWN, DOWN, listed(1))
    await world.follower.ensure_fresh()
    with caplog.at_level(logging.WARNING, "ostiary.backend"):
        world.clock.advance(MAX_STALE)
        for _ in range(2):
            with pytest.raises(ProviderError):
                await world.follower.ensure_fresh()
        assert world.follower.is_stale
        await world.follower.ensure_fresh()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "the connection failed (look there)" in caplog.text


async def test_the_gateway_waits_for_news_a_part_of_the_time_only() -> None:
    world = World(listed(3), listed(3))
    await world.follower._poll()
    await world.follower._poll()
    assert world.gateway.asked == [(None, 2), (3, 2)]


async def test_the_follower_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostiary_gateway.middleware.revocation_follower.RETRY_SECONDS", 0.0)
    reached = asyncio.Event()

    async def last() -> RevokedCredentials:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    world = World(DOWN, listed(1), last)
    running: asyncio.Task[None] = asyncio.create_task(world.follower.run())
    await reached.wait()
    running.cancel()
    assert world.follower.tokens.head == 1
