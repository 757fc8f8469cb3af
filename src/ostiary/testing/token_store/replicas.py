"""Token stores that keep notes for replicas, and know whose they are, as tests.

The interface is `ostiary.interfaces.store_abilities.replicas`.
"""

from __future__ import annotations

from typing import Protocol

import pytest

from ostiary.interfaces.store_abilities.replicas import LARGEST_NOTE, MOST_NOTES, NoteStore, OwnedStore
from ostiary.testing.clock import FakeClock


class ReplicaStore(NoteStore, OwnedStore, Protocol):
    """What the fixtures `store` and `other` give."""


@pytest.mark.asyncio
class ReplicaStoreContract:
    """Inherit from it beside `SharedTokenStoreContract`: the fixtures `store`, `other` and `clock` are the same."""

    async def test_what_one_notes_the_other_finds(
        self, store: ReplicaStore, other: ReplicaStore, clock: FakeClock
    ) -> None:
        await store.put_notes("refusals", {"a": b"one", "b": b"\x00\xff"}, seconds=60)
        note = await other.find_note("refusals", "a")
        assert note is not None
        assert (note.key, note.data, note.written_at) == ("a", b"one", clock.now())
        assert [note.data for note in await other.latest_notes("refusals", 10)] == [b"\x00\xff", b"one"]

    async def test_topics_and_keys_do_not_disturb_each_other(self, store: ReplicaStore) -> None:
        keys = ["", "a", "A", "a/b", "\u00e9", "a:b", "{a}", "x" * 200]
        for topic in ("t", "T", "t:a"):
            await store.put_notes(topic, {key: f"{topic} {key}".encode() for key in keys}, seconds=60)
        for topic in ("t", "T", "t:a"):
            for key in keys:
                note = await store.find_note(topic, key)
                assert note is not None
                assert note.data == f"{topic} {key}".encode()
        assert await store.find_note("t", "unknown") is None
        assert await store.find_note("unknown", "a") is None

    async def test_a_note_is_gone_when_its_time_is_over(self, store: ReplicaStore, clock: FakeClock) -> None:
        await store.put_notes("t", {"short": b"s"}, seconds=10)
        await store.put_notes("t", {"long": b"l"}, seconds=20)
        clock.advance(10)
        assert await store.find_note("t", "short") is None
        assert [note.key for note in await store.latest_notes("t", 10)] == ["long"]
        clock.advance(10)
        assert await store.latest_notes("t", 10) == []

    async def test_a_note_takes_the_place_of_an_older_one(
        self, store: ReplicaStore, other: ReplicaStore, clock: FakeClock
    ) -> None:
        await store.put_notes("t", {"a": b"old", "b": b"b"}, seconds=10)
        clock.advance(9)
        await other.put_notes("t", {"a": b"new"}, seconds=10)
        clock.advance(5)
        assert [(note.key, note.data) for note in await store.latest_notes("t", 10)] == [("a", b"new")]

    async def test_the_latest_are_listed_first(self, store: ReplicaStore, clock: FakeClock) -> None:
        for key in "abcde":
            await store.put_notes("t", {key: b""}, seconds=60)
            clock.advance(1)
        await store.put_notes("t", {"b": b""}, seconds=60)
        assert [note.key for note in await store.latest_notes("t", 3)] == ["b", "e", "d"]

    async def test_a_removed_note_is_gone(self, store: ReplicaStore, other: ReplicaStore) -> None:
        await store.put_notes("t", {"a": b"a", "b": b"b"}, seconds=60)
        await other.remove_note("t", "a")
        await other.remove_note("t", "unknown")
        assert await store.find_note("t", "a") is None
        assert [note.key for note in await store.latest_notes("t", 10)] == ["b"]

    async def test_only_the_latest_so_many_are_kept(self, store: ReplicaStore) -> None:
        await store.put_notes("other topic", {"kept": b""}, seconds=60)
        for part in range(0, MOST_NOTES + 1000, 1000):
            notes = {f"{number:06}": b"" for number in range(part, part + 1000)}
            await store.put_notes("t", notes, seconds=60)
        assert await store.find_note("t", "000000") is None
        assert await store.find_note("t", f"{MOST_NOTES + 999:06}") is not None
        assert len(await store.latest_notes("t", 2 * MOST_NOTES)) <= MOST_NOTES
        assert await store.find_note("other topic", "kept") is not None

    async def test_a_note_that_is_too_large_is_refused(self, store: ReplicaStore) -> None:
        await store.put_notes("t", {"a": b"x" * LARGEST_NOTE}, seconds=60)
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the implementation's own
            await store.put_notes("t", {"b": b"", "c": b"x" * (LARGEST_NOTE + 1)}, seconds=60)
        assert await store.find_note("t", "b") is None

    async def test_the_first_owner_stays(self, store: ReplicaStore, other: ReplicaStore) -> None:
        assert await store.claim("https://a.example") == "https://a.example"
        assert await other.claim("https://b.example") == "https://a.example"
        assert await store.claim("https://a.example") == "https://a.example"

    async def test_another_owner_can_take_over_on_purpose(self, store: ReplicaStore, other: ReplicaStore) -> None:
        await store.claim("https://a.example")
        assert await other.claim("https://b.example", anew=True) == "https://b.example"
        assert await store.claim("https://a.example") == "https://b.example"
