"""Conformance suites for the capabilities of token stores that hold objects, are shared, or serve replicas.

See `ostiary_gateway.interfaces.store_capabilities`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from ostiary.errors import ProviderError
from ostiary.testing import FakeClock
from ostiary_gateway.capabilities import has_trait
from ostiary_gateway.interfaces.store_capabilities import (
    LARGEST_NOTE,
    LARGEST_OBJECT,
    LONGEST_NAME,
    MOST_NOTES,
    CountsStoredObjects,
    NoteStore,
    ObjectStore,
    OwnedStore,
    StoredObject,
)
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, SharedBetweenProcesses, TokenStore
from ostiary_gateway.testing.token_store.samples import (
    ODD_NAMES,
    case,
    contents,
    digest_of,
    follow,
    head,
    in_minutes,
    make_session,
    make_token,
    renewable_session,
)

KIND = "signing-key"
# In order of code points, which differs from alphabetical order.
NAMES = ("-a", "0", "B", "Z", "_", "a", "a/b", "b", "~", "\u00e9", "\u4e00", "\ufffd", "\U0001d518")


class StoreWithObjects(TokenStore, ObjectStore, Protocol):
    """The type of the fixtures `store` and `other`."""


class StoreThatCountsObjects(StoreWithObjects, CountsStoredObjects, Protocol):
    """The type of the fixture `store` of `StoredObjectCountsContract`."""


@pytest.mark.asyncio
class ObjectStoreContract:
    """Inherit from this class in addition to `TokenStoreContract`. Uses the same fixtures `store` and `clock`."""

    # --- reading and writing ---

    async def test_an_object_is_found_as_it_was_put(self, store: StoreWithObjects, clock: FakeClock) -> None:
        version = await store.put_object(KIND, "k1", b"\x00\xff secret", version=0)
        assert version is not None
        assert version > 0
        expected = StoredObject(KIND, "k1", b"\x00\xff secret", version, clock.now())
        assert await store.find_object(KIND, "k1") == expected
        assert await store.list_objects(KIND) == [expected]
        assert "secret" not in repr(expected)

    async def test_what_is_not_there_is_nothing(self, store: StoreWithObjects) -> None:
        assert await store.find_object(KIND, "k1") is None
        assert await store.list_objects(KIND) == []
        assert await store.object_kinds() == []
        assert not await store.delete_object(KIND, "k1")

    async def test_names_of_objects_are_kept_exactly(self, store: StoreWithObjects) -> None:
        names = [*ODD_NAMES[:-1], "a b\n", "x" * LONGEST_NAME]
        for name in names:
            with case(name):
                assert await store.put_object(KIND, name, name.encode(), version=0) is not None
                assert await store.put_object("other-kind", name, b"other", version=0) is not None
        for name in names:
            with case(name):
                assert len(name) == LONGEST_NAME or await store.find_object(KIND, name + " ") is None
                found = await store.find_object(KIND, name)
                assert found is not None
                assert (found.kind, found.name, found.data) == (KIND, name, name.encode())
        listed = await store.list_objects(KIND)
        assert {each.name: each.data for each in listed} == {name: name.encode() for name in names}
        assert len(listed) == len(names)
        assert await store.object_kinds() == ["other-kind", KIND]

    async def test_what_is_no_kind_or_no_name_is_refused(self, store: StoreWithObjects) -> None:
        for kind, name in (
            *(("", "k1"), ("Key", "k1"), ("key:1", "k1"), ("key-", "k1"), ("1key", "k1"), ("k" * 65, "k1")),
            *((KIND, ""), (KIND, "a\0b"), (KIND, "\ud800"), (KIND, "\u00e9" * (LONGEST_NAME // 2 + 1))),
        ):
            for work in (
                store.put_object(kind, name, b"", version=None),
                store.find_object(kind, name),
                store.delete_object(kind, name),
            ):
                with case(kind, name), pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
                    await work

    async def test_an_object_that_is_too_large_is_refused(self, store: StoreWithObjects) -> None:
        await store.put_object(KIND, "full", b"x" * LARGEST_OBJECT, version=0)
        with pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
            await store.put_object(KIND, "larger", b"x" * (LARGEST_OBJECT + 1), version=0)
        assert [each.name for each in await store.list_objects(KIND)] == ["full"]

    # --- order ---

    async def test_objects_are_listed_by_name_in_pages(self, store: StoreWithObjects) -> None:
        for name in reversed(NAMES):
            await store.put_object(KIND, name, b"", version=0)
        await store.put_object("another", "a", b"", version=0)
        assert [each.name for each in await store.list_objects(KIND)] == list(NAMES)
        pages: list[str] = []
        while page := await store.list_objects(KIND, after=pages[-1] if pages else "", limit=4):
            assert len(page) <= 4
            pages += [each.name for each in page]
        assert pages == list(NAMES)
        assert [each.name for each in await store.list_objects(KIND, after="a.", limit=2)] == ["a/b", "b"]

    async def test_many_are_listed(self, store: StoreWithObjects) -> None:
        names = [f"{number:04}" for number in range(130)]
        await asyncio.gather(*(store.put_object(KIND, name, name.encode(), version=0) for name in names))
        assert [each.data.decode() for each in await store.list_objects(KIND)] == names
        assert [each.name for each in await store.list_objects(KIND, after="0001", limit=120)] == names[2:122]

    # --- compare and set ---

    async def test_a_change_needs_the_version_that_is_there(self, store: StoreWithObjects, clock: FakeClock) -> None:
        first = await store.put_object(KIND, "k1", b"one", version=0)
        assert first is not None
        assert await store.put_object(KIND, "k1", b"two", version=0) is None
        assert await store.put_object(KIND, "k1", b"two", version=first + 1) is None
        assert await store.put_object(KIND, "k2", b"two", version=first) is None
        assert await store.find_object(KIND, "k2") is None
        clock.advance(5)
        second = await store.put_object(KIND, "k1", b"two", version=first)
        assert second not in (None, first)
        assert await store.put_object(KIND, "k1", b"three", version=first) is None
        stored = await store.find_object(KIND, "k1")
        assert stored is not None
        assert (stored.data, stored.version, stored.changed_at) == (b"two", second, clock.now())

    async def test_whatever_is_there_can_be_replaced(self, store: StoreWithObjects) -> None:
        versions = [await store.put_object(KIND, "k1", data, version=None) for data in (b"one", b"two", b"two")]
        assert len(set(versions)) == 3
        (stored,) = await store.list_objects(KIND)
        assert (stored.data, stored.version) == (b"two", versions[-1])

    async def test_of_many_that_create_or_change_at_once_one_does(self, store: StoreWithObjects) -> None:
        versions = await asyncio.gather(
            *(store.put_object(KIND, "k1", b"%d" % number, version=0) for number in range(10))
        )
        (first,) = [version for version in versions if version is not None]
        versions = await asyncio.gather(
            *(store.put_object(KIND, "k1", b"%d" % number, version=first) for number in range(10))
        )
        (second,) = [version for version in versions if version is not None]
        stored = await store.find_object(KIND, "k1")
        assert stored is not None
        assert (stored.data, stored.version) == (b"%d" % versions.index(second), second)

    async def test_a_version_is_not_used_again_after_a_deletion(self, store: StoreWithObjects) -> None:
        """A caller that has read an object must not overwrite a different one of the same name."""
        first = await store.put_object(KIND, "k1", b"one", version=0)
        assert await store.delete_object(KIND, "k1")
        second = await store.put_object(KIND, "k1", b"two", version=0)
        assert first != second
        assert await store.put_object(KIND, "k1", b"three", version=first) is None
        assert not await store.delete_object(KIND, "k1", version=first)

    async def test_what_was_deleted_is_gone(self, store: StoreWithObjects) -> None:
        versions = {name: await store.put_object(KIND, name, b"", version=0) for name in "abc"}
        assert not await store.delete_object(KIND, "a", version=0)
        assert await store.delete_object(KIND, "a", version=versions["a"])
        assert await store.delete_object(KIND, "c")
        assert not await store.delete_object(KIND, "c")
        assert [each.name for each in await store.list_objects(KIND)] == ["b"]
        assert await store.delete_object(KIND, "b")
        assert await store.object_kinds() == []

    # --- lifetime ---

    async def test_objects_outlive_every_session(self, store: StoreWithObjects, clock: FakeClock) -> None:
        version = await store.put_object(KIND, "k1", b"one", version=0)
        await store.revoke(Revocation(RevocationKind.BEFORE, ""))
        clock.advance(hours=24 * 400)
        await store.heartbeat()
        await store.sweep()
        stored = await store.find_object(KIND, "k1")
        assert stored is not None
        assert (stored.data, stored.version) == (b"one", version)

    async def test_when_the_clock_is_set_back_objects_change_with_it(
        self, store: StoreWithObjects, clock: FakeClock
    ) -> None:
        first = await store.put_object(KIND, "k1", b"one", version=0)
        await store.heartbeat()
        clock.set_back(hours=1)
        await store.heartbeat()
        stored = await store.find_object(KIND, "k1")
        assert stored is not None
        assert (stored.version, stored.changed_at) == (first, clock.now())
        assert await store.put_object(KIND, "k1", b"two", version=first) is not None

    async def test_nothing_is_answered_once_it_is_closed(self, store: StoreWithObjects) -> None:
        await store.close()
        for work in (
            store.put_object(KIND, "k1", b"", version=0),
            store.find_object(KIND, "k1"),
            store.list_objects(KIND),
            store.delete_object(KIND, "k1"),
            store.object_kinds(),
        ):
            with pytest.raises(ProviderError) as failure:
                await work
            assert failure.value.code == "token-store-unavailable"


@pytest.mark.asyncio
class StoredObjectCountsContract:
    """For stores with `CountsStoredObjects`, in addition to `ObjectStoreContract`: limits per user depend on it."""

    async def test_objects_are_counted_by_the_beginning_of_their_names(self, store: StoreThatCountsObjects) -> None:
        for name in (*NAMES, "a/", "a/c", "a0", "%", "_a", "\U0010ffff", "\U0010ffffa"):
            await store.put_object(KIND, name, b"", version=0)
        await store.put_object("other-kind", "a/other", b"", version=0)
        names = [each.name for each in await store.list_objects(KIND)]
        for prefix in ("a/", "a", "b", "nobody", "%", "_", "~", "\u00e9", "\ufffd", "\U0001d518", "\U0010ffff", ""):
            with case(prefix):
                expected = sum(name.startswith(prefix) for name in names)
                assert await store.count_objects(KIND, prefix) == expected
        assert await store.count_objects("no-kind", "a") == 0

    async def test_what_was_deleted_or_only_changed_is_not_counted(self, store: StoreThatCountsObjects) -> None:
        for name in ("ann.1", "ann.2", "bob.1"):
            await store.put_object(KIND, name, b"", version=0)
        await store.put_object(KIND, "ann.1", b"changed", version=None)
        await store.delete_object(KIND, "ann.2")
        assert [await store.count_objects(KIND, prefix) for prefix in ("ann.", "bob.")] == [1, 1]


class SharedObjectStoreContract(ObjectStoreContract):
    """For stores that several processes share. Also requires the fixture `other`."""

    async def test_what_one_puts_the_other_finds_and_may_change(
        self, store: StoreWithObjects, other: StoreWithObjects
    ) -> None:
        first = await store.put_object(KIND, "k1", b"one", version=0)
        stored = await other.find_object(KIND, "k1")
        assert stored is not None
        assert (stored.data, stored.version) == (b"one", first)
        second = await other.put_object(KIND, "k1", b"two", version=first)
        assert second is not None
        assert await store.put_object(KIND, "k1", b"three", version=first) is None
        assert [each.data for each in await store.list_objects(KIND)] == [b"two"]
        assert await store.delete_object(KIND, "k1", version=second)
        assert await other.find_object(KIND, "k1") is None

    async def test_of_both_that_change_at_once_one_does(self, store: StoreWithObjects, other: StoreWithObjects) -> None:
        version: int | None = 0
        for _ in range(5):
            versions = await asyncio.gather(
                *(each.put_object(KIND, "k1", b"", version=version) for each in [store, other] * 3)
            )
            (version,) = [each for each in versions if each is not None]


class SharingContract:
    """Two instances over the same data. Part of `SharedTokenStoreContract`.

    Changes of one process are visible to the other immediately, and of two equal changes only one succeeds.
    """

    async def test_it_says_that_processes_can_share_it(self, store: TokenStore) -> None:
        assert has_trait(store, SharedBetweenProcesses), "declare shared_between_processes = True"

    async def test_what_one_adds_the_other_finds(self, store: TokenStore, other: TokenStore, clock: FakeClock) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        entry = await other.find(digest_of("t1"))
        assert entry is not None
        assert entry.session == session

    async def test_what_one_revokes_the_other_no_longer_finds_and_is_told(
        self, store: TokenStore, other: TokenStore, clock: FakeClock
    ) -> None:
        """T3: the other replica is notified too."""
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        start = await head(other)
        waiting = asyncio.ensure_future(follow(other, start))
        assert await other.find(digest_of("t1")) is not None
        await store.revoke(Revocation(RevocationKind.USER, "ann", by="an operator"))
        assert await other.find(digest_of("t1")) is None
        assert contents(await waiting) == [(RevocationKind.USER, "ann", None, "an operator")]
        assert await head(other) == await head(store) == start + 1

    async def test_when_the_clock_is_set_back_both_agree(
        self, store: TokenStore, other: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session, minutes=5), make_token(session, "t2", minutes=20)])
        clock.advance(minutes=5)
        assert await other.find(digest_of("t1")) is None
        assert await other.find(digest_of("t2")) is not None
        await other.heartbeat()
        clock.set_back(hours=1)
        await store.heartbeat()
        for each in (store, other):
            assert await each.find(digest_of("t1")) is None
            entry = await each.find(digest_of("t2"))
            assert entry is not None
            assert entry.token.expires_at == in_minutes(clock, 15)

    async def test_one_renewal_token_is_spent_once_by_both(
        self, store: TokenStore, other: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        attempts = [
            each.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[make_token(session, f"n{number}")])
            for number, each in enumerate([store, other] * 5)
        ]
        assert sorted(await asyncio.gather(*attempts)) == [False] * 9 + [True]

    async def test_both_write_at_once(self, store: TokenStore, other: TokenStore, clock: FakeClock) -> None:
        sessions = [make_session(clock, f"s{number}") for number in range(100)]
        await asyncio.gather(
            *(
                each.add(session, [make_token(session, session.id)])
                for session, each in zip(sessions, [store, other] * 50, strict=True)
            )
        )
        assert await store.count() == await other.count() == 100


# Messages between replicas, and the owner of the store.


class ReplicaStore(NoteStore, OwnedStore, Protocol):
    """The type of the fixtures `store` and `other`."""


@pytest.mark.asyncio
class ReplicaStoreContract:
    """Inherit from this class in addition to `SharedTokenStoreContract`.

    Uses the same fixtures `store`, `other` and `clock`.
    """

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
        with pytest.raises(ValueError):  # noqa: PT011  # the message is the implementation's own
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
