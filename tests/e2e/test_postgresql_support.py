"""The servers of `tests.support.postgresql` fail as the tests of the token store need it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest
import trustme

from tests.support.postgresql import DATABASE, PASSWORD, USER, PgBouncer, PostgresServer, pgbouncer, running


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


async def connect(server: PostgresServer | PgBouncer, **settings: object) -> asyncpg.Connection:
    settings = {"statement_cache_size": 0, **settings}
    return await asyncpg.connect(
        host=server.host, port=server.port, user=USER, password=PASSWORD, database=DATABASE, **settings
    )


@pytest.mark.slow
def test_a_synchronous_standby_has_every_commit_when_the_primary_is_killed(server: PostgresServer) -> None:
    server.sql("CREATE TABLE kept (number int)")
    with server.standby(synchronous=True) as standby:
        server.sql("INSERT INTO kept VALUES (1)")
        server.kill()
        standby.promote()
        assert standby.sql("INSERT INTO kept VALUES (2)", "SELECT sum(number) FROM kept") == "3"


async def test_a_paused_server_answers_nothing_until_it_is_resumed(server: PostgresServer) -> None:
    connection = await connect(server)
    server.pause()
    question = asyncio.ensure_future(connection.fetchval("SELECT 1"))
    assert not (await asyncio.wait([question], timeout=0.1))[0]
    server.resume()
    assert await question == 1
    await connection.close()


async def test_pgbouncer_gives_each_transaction_another_connection(postgresql_15: PostgresServer) -> None:
    with pgbouncer(postgresql_15, connections=2) as pooler:
        one, other = await connect(pooler), await connect(pooler)
        await one.execute("BEGIN")
        pids = {await each.fetchval("SELECT pg_backend_pid()") for each in (one, other)}
        assert len(pids) == 2
        for each in (one, other):
            await each.close()


async def test_a_server_with_tls_takes_no_other_connections(server: PostgresServer, ca: trustme.CA) -> None:
    server.use_tls(ca, "127.0.0.1")
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        await connect(server, ssl=False)
    connection = await connect(server, ssl="require")
    assert await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    await connection.close()
