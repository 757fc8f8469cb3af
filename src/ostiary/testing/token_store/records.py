"""The conformance suite for stores that keep the records of sign-ins under way."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from ostiary.errors import ProviderError
from ostiary.interfaces.token_store import (
    LARGEST_RECORD,
    MOST_RECORDS,
    RecordStore,
    TokenStore,
)
from ostiary.testing.clock import FakeClock
from ostiary.testing.token_store.samples import Sweep, digest_of, in_minutes


@pytest.mark.asyncio
class RecordStoreContract:
    """What logins under way remember. Inherit from it, and give the fixture `store`."""

    most_records: ClassVar[int] = MOST_RECORDS
    """How many the store keeps; fewer where the store under test has a smaller limit."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    async def test_a_record_is_found_until_it_is_taken_and_then_by_nobody(
        self, store: RecordStore, clock: FakeClock
    ) -> None:
        """L1."""
        data = bytes(range(256))
        assert await store.put_record(digest_of("a"), data, in_minutes(clock, 10))
        assert await store.find_record(digest_of("a")) == data
        assert await store.find_record(digest_of("b")) is None
        assert await store.take_record(digest_of("b")) is None
        assert await store.take_record(digest_of("a")) == data
        assert await store.take_record(digest_of("a")) is None
        assert await store.find_record(digest_of("a")) is None

    async def test_of_many_who_take_a_record_at_once_one_gets_it(self, store: RecordStore, clock: FakeClock) -> None:
        """L1."""
        await store.put_record(digest_of("a"), b"x", in_minutes(clock, 10))
        records = await asyncio.gather(*(store.take_record(digest_of("a")) for _ in range(20)))
        assert sorted(records, key=bool) == [None] * 19 + [b"x"]

    async def test_a_record_is_gone_the_moment_it_expires(self, store: RecordStore, clock: FakeClock) -> None:
        """L1: also before any sweep."""
        for name in ("a", "b"):
            await store.put_record(digest_of(name), b"x", in_minutes(clock, 10))
        clock.advance(minutes=10, seconds=-0.000001)
        assert await store.find_record(digest_of("a")) == b"x"
        clock.advance(0.000001)
        assert await store.find_record(digest_of("a")) is None
        assert await store.take_record(digest_of("a")) is None
        assert await store.put_record(digest_of("b"), b"y", in_minutes(clock, 10))
        assert await store.take_record(digest_of("b")) == b"y"

    async def test_a_sweep_leaves_what_has_not_expired(
        self, store: RecordStore, clock: FakeClock, sweep: Sweep
    ) -> None:
        await store.put_record(digest_of("a"), b"x", in_minutes(clock, 1))
        await store.put_record(digest_of("b"), b"y", in_minutes(clock, 2))
        clock.advance(minutes=1)
        await sweep()
        assert await store.find_record(digest_of("b")) == b"y"

    @pytest.fixture
    def sweep(self, store: TokenStore) -> Sweep:
        return store.sweep

    async def test_a_key_that_is_in_use_is_not_taken_over(self, store: RecordStore, clock: FakeClock) -> None:
        await store.put_record(digest_of("a"), b"first", in_minutes(clock, 10))
        assert not await store.put_record(digest_of("a"), b"second", in_minutes(clock, 10))
        assert await store.find_record(digest_of("a")) == b"first"

    async def test_what_is_too_large_is_refused(self, store: RecordStore, clock: FakeClock) -> None:
        assert await store.put_record(digest_of("a"), b"x" * LARGEST_RECORD, in_minutes(clock, 10))
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
            await store.put_record(digest_of("b"), b"x" * (LARGEST_RECORD + 1), in_minutes(clock, 10))

    async def test_the_oldest_make_room_and_there_are_never_more(self, store: RecordStore, clock: FakeClock) -> None:
        """L1: ten thousand logins that nobody finishes stay bounded, and the next one begins all the same."""
        until = in_minutes(clock, 10)
        await store.put_record(digest_of("first"), b"x", until)
        await store.put_record(digest_of("second"), b"x", until)
        await asyncio.gather(
            *(store.put_record(digest_of(str(number)), b"x", until) for number in range(self.most_records - 1))
        )
        assert await store.find_record(digest_of("first")) is None
        assert await store.find_record(digest_of("second")) == b"x"
        assert await store.find_record(digest_of(str(self.most_records - 2))) == b"x"

    async def test_nothing_is_kept_or_found_once_it_is_closed(self, store: RecordStore, clock: FakeClock) -> None:
        closing: TokenStore = store  # type: ignore[assignment]  # every record store is a token store
        await closing.close()
        for question in (store.find_record(digest_of("a")), store.take_record(digest_of("a"))):
            with pytest.raises(ProviderError):
                await question
        with pytest.raises(ProviderError):
            await store.put_record(digest_of("a"), b"x", in_minutes(clock, 10))


class SharedRecordStoreContract(RecordStoreContract):
    """For stores that several processes share; give the fixture `other` too."""

    async def test_what_one_puts_the_other_takes_and_only_one_of_them(
        self, store: RecordStore, other: RecordStore, clock: FakeClock
    ) -> None:
        """L1: any worker can finish a login, and one of them does."""
        await store.put_record(digest_of("a"), b"x", in_minutes(clock, 10))
        assert await other.find_record(digest_of("a")) == b"x"
        records = await asyncio.gather(*(each.take_record(digest_of("a")) for each in [store, other] * 5))
        assert sorted(records, key=bool) == [None] * 9 + [b"x"]
