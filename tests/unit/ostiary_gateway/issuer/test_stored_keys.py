"""Keys in the token store: sealed, shared, and rotated by one replica at a time."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError, ProviderError
from ostiary_gateway.issuer.keys import KeyLife
from ostiary_gateway.issuer.stored_keys import KIND, NAME, StoredKeys
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

LIFE = KeyLife(timedelta(hours=24), timedelta(hours=1))
SECRET, OTHER = "canary-of-the-sealing-secret-0123456789", "another-secret-of-the-operator-0123456789"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryTokenStore:
    return MemoryTokenStore(clock=clock)


class Replicas:
    """Replicas with one store, each with a secret file of its own."""

    def __init__(self, folder: Path, store: MemoryTokenStore, clock: FakeClock) -> None:
        self._folder, self._store, self._clock = folder, store, clock
        self._files = 0

    def one(self, *secrets: str) -> StoredKeys:
        self._files += 1
        path = self._folder / f"secret-{self._files}"
        path.write_text("\n".join(secrets or (SECRET,)))
        return StoredKeys(self._store, str(path), LIFE, self._clock)

    def published(self, keys: StoredKeys) -> list[str]:
        return [key.id for key in keys.ring.published_keys(self._clock.now())]

    def signing(self, keys: StoredKeys) -> str | None:
        key = keys.ring.signing(self._clock.now())
        return None if key is None or key.private is None else key.id


@pytest.fixture
def replicas(tmp_path: Path, store: MemoryTokenStore, clock: FakeClock) -> Replicas:
    return Replicas(tmp_path, store, clock)


async def test_the_first_key_is_made_once_by_whoever_comes_first(replicas: Replicas) -> None:
    many = [replicas.one() for _ in range(10)]
    await asyncio.gather(*(keys.refresh() for keys in many))
    made = await asyncio.gather(*(keys.rotate() for keys in many))
    assert made.count(True) == 1
    assert len({replicas.signing(keys) for keys in many}) == 1
    assert all(len(keys.ring.keys) == 1 for keys in many)


async def test_the_next_key_is_published_before_any_replica_signs_with_it(replicas: Replicas, clock: FakeClock) -> None:
    """Two replicas that look at different moments: what one signs with, the other publishes already."""
    one, other = replicas.one(), replicas.one()
    await one.refresh()
    await one.rotate()
    for _ in range(200):
        for keys in (one, other):
            await keys.refresh()
            await keys.rotate()
            clock.advance(minutes=17)
        # They read at different moments; before either reads again, each publishes what the other signs with.
        assert replicas.signing(one) in replicas.published(other)
        assert replicas.signing(other) in replicas.published(one)


async def test_what_lies_in_the_store_says_nothing_of_the_private_key(
    replicas: Replicas, store: MemoryTokenStore
) -> None:
    keys = replicas.one()
    await keys.refresh()
    await keys.rotate()
    stored = await store.find_object(KIND, NAME)
    assert stored is not None
    key = keys.ring.keys[0]
    assert key.private is not None
    for line in [*key.private.pem().splitlines()[1:-1], SECRET.encode(), b"PRIVATE"]:
        assert line not in stored.data
    assert SECRET not in f"{keys!r}{keys.ring!r}{vars(keys)}"


async def test_with_another_secret_nothing_is_signed_published_or_rotated(replicas: Replicas, clock: FakeClock) -> None:
    right, wrong = replicas.one(), replicas.one(OTHER)
    await right.refresh()
    await right.rotate()
    clock.advance(hours=23, minutes=30)
    await wrong.refresh()
    assert (replicas.signing(wrong), replicas.published(wrong)) == (None, [])
    # It is time for the next key, but the others could not open one of this replica.
    assert await wrong.rotate() is False
    await right.refresh()
    assert await right.rotate() is True


async def test_an_older_secret_on_a_further_line_still_opens(replicas: Replicas, clock: FakeClock) -> None:
    old = replicas.one()
    await old.refresh()
    await old.rotate()
    new = replicas.one(OTHER, SECRET)
    await new.refresh()
    assert replicas.signing(new) == replicas.signing(old)
    clock.advance(hours=23, minutes=30)
    await new.rotate()
    # The next key is sealed with the first line alone.
    alone = replicas.one(OTHER)
    await alone.refresh()
    assert replicas.published(alone) == replicas.published(new)[1:]


async def test_a_key_that_somebody_put_into_the_store_is_not_published(replicas: Replicas, clock: FakeClock) -> None:
    ours = replicas.one()
    await ours.refresh()
    await ours.rotate()
    intruder = replicas.one("a-secret-that-the-gateway-does-not-have")
    await intruder.refresh()
    await intruder.rotate_now()
    await ours.refresh()
    assert len(ours.ring.keys) == 2
    assert replicas.published(ours) == [ours.ring.keys[0].id]
    # They can keep us from signing, and not sign in our name.
    clock.advance(10)
    assert replicas.signing(ours) is None


async def test_what_is_published_follows_from_the_sealed_half(replicas: Replicas, store: MemoryTokenStore) -> None:
    ours = replicas.one()
    await ours.refresh()
    await ours.rotate()
    stored = await store.find_object(KIND, NAME)
    assert stored is not None
    ring = json.loads(stored.data)
    ring["keys"][0]["jwk"]["x"] = "of-somebody-else"
    await store.put_object(KIND, NAME, json.dumps(ring).encode(), version=None)
    fresh = replicas.one()
    await fresh.refresh()
    assert "of-somebody-else" not in str(fresh.ring.jwks(FakeClock().now()))
    assert replicas.published(fresh) == replicas.published(ours)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"keys": [{}]}', b'{"keys": [{"jwk": {"kid": "a"}}]}', b"\xff"])
async def test_what_is_no_ring_is_told_and_the_keys_in_memory_stay(
    replicas: Replicas, store: MemoryTokenStore, data: bytes
) -> None:
    keys = replicas.one()
    await keys.refresh()
    await keys.rotate()
    before = keys.ring
    await store.put_object(KIND, NAME, data, version=None)
    with pytest.raises(ProviderError):
        await keys.refresh()
    assert keys.ring is before


async def test_a_store_that_is_away_leaves_the_keys_in_memory(
    replicas: Replicas, store: MemoryTokenStore, clock: FakeClock
) -> None:
    keys = replicas.one()
    await keys.refresh()
    await keys.rotate()
    signing = replicas.signing(keys)
    await store.close()
    with pytest.raises(ProviderError):
        await keys.refresh()
    assert replicas.signing(keys) == signing
    clock.advance(hours=24)
    # Its time is over: it signs nothing more, and what it signed can still be verified.
    assert replicas.signing(keys) is None
    assert replicas.published(keys) == [signing]
    clock.advance(minutes=17)
    assert replicas.published(keys) == []


async def test_a_secret_file_that_is_gone_is_told(replicas: Replicas, tmp_path: Path) -> None:
    keys = replicas.one()
    await keys.refresh()
    await keys.rotate()
    before = keys.ring
    os.unlink(tmp_path / "secret-1")
    with pytest.raises(ConfigurationError) as caught:
        await keys.refresh()
    assert caught.value.code == "issuer-key-unusable"
    assert keys.ring is before


async def test_rotating_now_is_seen_by_the_others_at_their_next_look(replicas: Replicas, clock: FakeClock) -> None:
    one, other = replicas.one(), replicas.one()
    for keys in (one, other):
        await keys.refresh()
        await keys.rotate()
    old = replicas.signing(one)
    await other.rotate_now()
    await one.refresh()
    assert replicas.signing(one) == replicas.signing(other) == old
    assert len(replicas.published(one)) == 2
    clock.advance(10)
    assert replicas.signing(one) == replicas.signing(other) != old
    assert old in replicas.published(one)
    await other.rotate_now(withdraw=True)
    await one.refresh()
    assert replicas.published(one) == [replicas.signing(other)]


class BusyStore(MemoryTokenStore):
    """Somebody else is always quicker."""

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        return None


async def test_who_never_wins_gives_up(tmp_path: Path, clock: FakeClock) -> None:
    keys = Replicas(tmp_path, BusyStore(clock=clock), clock).one()
    await keys.refresh()
    with pytest.raises(ProviderError, match="cannot be changed"):
        await keys.rotate()
