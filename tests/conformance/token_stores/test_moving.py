"""Sessions are moved from each kind of store to each other one, and back, and nothing is lost or gained on the way."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count, permutations
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.stores.transfer import MovableStore, compare, copy
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store.samples import head
from ostiary_gateway.testing.token_store.transfer import check_move, fill
from tests.support.postgresql import PostgresServer
from tests.support.postgresql_store import settings_for
from tests.support.redis import RedisServer, patient_settings, redis_server

NewStore = Callable[..., MovableStore]
KINDS = ("postgresql", "redis", "sqlite")

_numbers = count()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis") / "server") as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def new_store(
    redis: RedisServer, postgresql_15: PostgresServer, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[NewStore]:
    opened: list[MovableStore] = []

    def new(kind: str, number: int | None = None) -> MovableStore:
        """With the *number* of another one, it is a second store over the same data."""
        number = next(_numbers) if number is None else number
        stores: dict[str, Callable[[], MovableStore]] = {
            "sqlite": lambda: SqliteTokenStore(tmp_path / f"{number}.db", clock=clock),
            "postgresql": lambda: PostgresqlTokenStore(
                settings_for(postgresql_15, folder=tmp_path, schema=f"moving_{os.getpid()}_{number}"),
                clock=clock,
                database_clock=clock,
            ),
            "redis": lambda: RedisTokenStore(
                patient_settings(address=redis.address, prefix=f"moving-{number}"), clock=clock
            ),
        }
        opened.append(stores[kind]())
        return opened[-1]

    yield new
    for store in opened:
        await store.close()


@pytest.mark.parametrize(("kind", "other_kind"), list(permutations(KINDS, 2)))
async def test_everything_is_moved_to_another_kind_of_store_and_back(
    new_store: NewStore, clock: FakeClock, kind: str, other_kind: str
) -> None:
    source, target, back = new_store(kind), new_store(other_kind), new_store(kind)
    await fill(source, clock)
    assert await copy(source, target, clock=clock) == 5
    await check_move(source, target)
    assert await copy(source, target, clock=clock) == 0
    assert await copy(target, back, clock=clock) == 5
    await check_move(source, back)
    assert (await compare(source, back, clock=clock)).is_same


@pytest.mark.parametrize("kind", KINDS)
async def test_a_gateway_that_starts_on_the_moved_store_is_told_of_every_revocation(
    new_store: NewStore, clock: FakeClock, kind: str
) -> None:
    source, number = new_store("sqlite"), next(_numbers)
    await fill(source, clock)
    await copy(source, new_store(kind, number), clock=clock)
    gateway, operator = new_store(kind, number), new_store(kind, number)
    last = await head(gateway)
    await gateway.heartbeat()
    for name in ("ann", "bob"):
        await operator.revoke(Revocation(RevocationKind.USER, name))
        await gateway.heartbeat()
    batch = await gateway.revocations_after(last)
    assert (batch.head, batch.complete) == (last + 2, True)
    assert [each.value for each in batch.revocations] == ["ann", "bob"]
    assert (await gateway.export_log()).forgotten == (await source.export_log()).forgotten
