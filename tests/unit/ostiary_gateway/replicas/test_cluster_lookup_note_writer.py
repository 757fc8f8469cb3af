"""Notes are written in batches, within bounds, and hold no token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.store_capabilities import LARGEST_NOTE
from ostiary_gateway.replicas.cluster_lookup import (
    BURST,
    KEPT_SECONDS,
    MOST_WAITING,
    NOTES_PER_FLUSH,
    MessageWriter,
    Noted,
)
from ostiary_gateway.sessions import ACCESS_PREFIX, new_token
from ostiary_gateway.testing import FakeClock
from tests.support.noting_store import NotingStore

TOPIC = "refusals"
# A text "owner/key/rest".
TEXTS: Noted[str] = Noted(
    key=lambda text: text.split("/")[1], owner=lambda text: text.split("/")[0], json=lambda text: text
)


@pytest.fixture
async def store(clock: FakeClock, tmp_path: Path) -> AsyncIterator[NotingStore]:
    store = NotingStore(str(tmp_path / "tokens.db"), clock=clock)
    yield store
    await store.close()


class Writing:
    def __init__(self, store: NotingStore, clock: FakeClock) -> None:
        self.store, self.dropped = store, 0
        self.writer: MessageWriter[str] = MessageWriter(store, TOPIC, TEXTS, clock=clock, on_dropped=self._drop)

    def _drop(self) -> None:
        self.dropped += 1

    async def keys(self) -> list[str]:
        return [note.key for note in await self.store.latest_notes(TOPIC, 10_000)]


@pytest.fixture
def writing(store: NotingStore, clock: FakeClock) -> Writing:
    return Writing(store, clock)


async def test_nothing_is_written_at_the_request_itself(writing: Writing) -> None:
    writing.writer.add("ann/A1/x")
    assert await writing.keys() == []
    await writing.writer.flush()
    note = await writing.store.find_note(TOPIC, "a1")
    assert note is not None
    assert note.data == b'"ann/A1/x"'
    await writing.writer.flush()
    assert writing.dropped == 0


async def test_a_note_is_kept_for_a_day(writing: Writing, clock: FakeClock) -> None:
    writing.writer.add("ann/a/x")
    await writing.writer.flush()
    clock.advance(KEPT_SECONDS - 1)
    assert await writing.keys() == ["a"]
    clock.advance(1)
    assert await writing.keys() == []


async def test_one_user_cannot_flood_the_store_and_leaves_room_for_others(writing: Writing, clock: FakeClock) -> None:
    for number in range(10 * BURST):
        writing.writer.add(f"ann/a{number}/x")
    writing.writer.add("bob/b/x")
    assert writing.dropped == 9 * BURST
    await writing.writer.flush()
    keys = await writing.keys()
    assert len(keys) == BURST + 1
    assert "b" in keys
    clock.advance(31)
    writing.writer.add("ann/later/x")
    assert writing.dropped == 9 * BURST


async def test_a_flood_of_many_users_is_written_so_many_a_second_and_bounded(writing: Writing) -> None:
    for number in range(MOST_WAITING + 7):
        writing.writer.add(f"user{number}/k{number}/x")
    assert writing.dropped == 7
    await writing.writer.flush()
    assert len(await writing.keys()) == NOTES_PER_FLUSH
    await writing.writer.flush()
    assert len(await writing.keys()) == 2 * NOTES_PER_FLUSH


async def test_what_could_not_be_written_is_written_when_the_store_is_back(writing: Writing) -> None:
    writing.writer.add("ann/a/x")
    writing.store.away = True
    with pytest.raises(ProviderError):
        await writing.writer.flush()
    await writing.writer.finish()
    writing.store.away = False
    await writing.writer.flush()
    assert await writing.keys() == ["a"]
    assert writing.dropped == 0


async def test_one_that_is_too_large_is_left_out_and_does_not_stop_the_others(writing: Writing) -> None:
    writing.writer.add("ann/a/" + "x" * LARGEST_NOTE)
    writing.writer.add("ann/b/x")
    await writing.writer.flush()
    assert (await writing.keys(), writing.dropped) == (["b"], 1)
    writing.writer.add("ann/c/" + "x" * LARGEST_NOTE)
    await writing.writer.flush()
    assert (await writing.keys(), writing.dropped) == (["b"], 2)


async def test_a_worker_that_stops_writes_what_waits(writing: Writing) -> None:
    for number in range(2 * NOTES_PER_FLUSH + 1):
        writing.writer.add(f"user{number}/k{number}/x")
    await writing.writer.finish()
    assert len(await writing.keys()) == 2 * NOTES_PER_FLUSH + 1


async def test_a_token_in_a_path_is_not_written(writing: Writing) -> None:
    token = new_token(ACCESS_PREFIX).reveal()
    writing.writer.add(f"ann/a/{token}")
    await writing.writer.flush()
    note = await writing.store.find_note(TOPIC, "a")
    assert note is not None
    assert note.data == b'"ann/a/REDACTED"'
