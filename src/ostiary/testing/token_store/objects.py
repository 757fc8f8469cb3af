"""Token stores that keep objects: `ostiary.interfaces.store_abilities.stored_objects`, as tests."""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from ostiary.errors import ProviderError
from ostiary.interfaces.store_abilities.stored_objects import (
    LARGEST_OBJECT,
    LONGEST_NAME,
    CountsStoredObjects,
    ObjectStore,
    StoredObject,
)
from ostiary.interfaces.token_store import Revocation, RevocationKind, TokenStore
from ostiary.testing.clock import FakeClock
from ostiary.testing.token_store.samples import ODD_NAMES, case

KIND = "signing-key"
# In this order by code point; alphabets have others.
NAMES = ("-a", "0", "B", "Z", "_", "a", "a/b", "b", "~", "\u00e9", "\u4e00", "\ufffd", "\U0001d518")


class StoreWithObjects(TokenStore, ObjectStore, Protocol):
    """What the fixtures `store` and `other` give."""


class StoreThatCountsObjects(StoreWithObjects, CountsStoredObjects, Protocol):
    """The fixture `store` of `StoredObjectCountsContract`."""


@pytest.mark.asyncio
class ObjectStoreContract:
    """Inherit from it beside `TokenStoreContract`: the fixtures `store` and `clock` are the same."""

    # --- what goes in comes out ---

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
                with case(kind, name), pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
                    await work

    async def test_an_object_that_is_too_large_is_refused(self, store: StoreWithObjects) -> None:
        await store.put_object(KIND, "full", b"x" * LARGEST_OBJECT, version=0)
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
            await store.put_object(KIND, "larger", b"x" * (LARGEST_OBJECT + 1), version=0)
        assert [each.name for each in await store.list_objects(KIND)] == ["full"]

    # --- in order ---

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
        """Who has read an object must not overwrite another one of that name."""
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

    # --- what is no reason to go ---

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
    """For stores with `CountsStoredObjects`, beside `ObjectStoreContract`: limits for each user rest on it."""

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
    """For stores that several processes share: with the fixture `other`."""

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
