"""Which server is used, over what, and as whom: several hosts, a failover, TLS, sockets, the environment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from socket import socket

import pytest
import trustme

from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings, PostgresqlTls
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.testing.token_store import digest_of
from tests.support.postgresql import DATABASE, USER, PostgresServer, running
from tests.support.postgresql_store import settings_for
from tests.support.retrying import until_it_works
from tests.unit.ostiary_gateway.stores.postgresql.stores import sign_in, unavailable

# --- several hosts ---


@pytest.mark.parametrize("standby_first", [False, True])
async def test_the_host_that_takes_writes_is_used(tmp_path: Path, server: PostgresServer, standby_first: bool) -> None:
    with server.standby() as standby:
        hosts = (standby, server) if standby_first else (server, standby)
        store = PostgresqlTokenStore(settings_for(*hosts, folder=tmp_path))
        await sign_in(store, "s1")
        await store.close()
        alone = PostgresqlTokenStore(settings_for(standby, folder=tmp_path))
        error = await unavailable(alone.find(digest_of("s1")))
        assert error.cause == "no server takes writes: all that answer are standbys, or read-only"
        await alone.close()


async def test_a_failover_is_followed_without_a_person_and_nothing_acknowledged_is_lost(
    tmp_path: Path, server: PostgresServer
) -> None:
    with server.standby(synchronous=True) as standby:
        store = PostgresqlTokenStore(settings_for(server, standby, folder=tmp_path))
        acknowledged = [await sign_in(store, f"s{number}") for number in range(20)]
        server.kill()
        await unavailable(store.find(digest_of("s0")))
        standby.promote()
        await until_it_works(lambda: sign_in(store, "after"))
        for session in acknowledged:
            entry = await store.find(digest_of(session.id))
            assert entry is not None
            assert entry.session == session
        await store.close()


async def test_a_primary_that_hangs_does_not_keep_anybody_from_the_new_one(
    tmp_path: Path, server: PostgresServer
) -> None:
    with server.standby(synchronous=True) as standby:
        settings = settings_for(server, standby, folder=tmp_path, connect_timeout=120.0)
        patient, hasty = PostgresqlTokenStore(settings), PostgresqlTokenStore(replace(settings, command_timeout=0.5))
        await sign_in(patient, "s1")
        await until_it_works(lambda: hasty.find(digest_of("s1")))
        server.pause()
        standby.promote()
        await unavailable(hasty.find(digest_of("s1")))
        assert await until_it_works(lambda: hasty.find(digest_of("s1"))) is not None
        for store in (patient, hasty):
            await store.close()


async def test_a_host_that_accepts_and_says_nothing_is_not_waited_for(
    tmp_path: Path, postgresql_15: PostgresServer
) -> None:
    with closing(socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        hosts = (f"127.0.0.1:{silent.getsockname()[1]}", f"127.0.0.1:{postgresql_15.port}")
        store = PostgresqlTokenStore(settings_for(folder=tmp_path, hosts=hosts, connect_timeout=60.0))
        async with asyncio.timeout(40):
            await sign_in(store, "s1")
        await store.close()


async def test_what_one_server_says_is_told_rather_than_that_another_is_away(
    tmp_path: Path, postgresql_15: PostgresServer
) -> None:
    hosts = ("127.0.0.1:1", f"127.0.0.1:{postgresql_15.port}")
    store = PostgresqlTokenStore(settings_for(folder=tmp_path, hosts=hosts, database="nowhere"))
    error = await unavailable(store.heartbeat())
    assert error.cause == 'the database does not exist (database "nowhere" does not exist)'
    await store.close()


# --- a bounded pool ---


async def test_no_more_connections_are_made_than_configured(tmp_path: Path, server: PostgresServer) -> None:
    store = PostgresqlTokenStore(settings_for(server, folder=tmp_path, connections=3))
    await asyncio.gather(*(sign_in(store, f"s{number}") for number in range(100)))
    count = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{USER}' AND application_name = 'ostiary'"
    assert server.sql(count) == "3"
    await store.close()
    server.wait_until(count, "0")


async def test_a_caller_who_gives_up_leaves_no_connection_in_use(tmp_path: Path, server: PostgresServer) -> None:
    store = PostgresqlTokenStore(settings_for(server, folder=tmp_path, connections=1, command_timeout=20.0))
    await sign_in(store, "s1")
    server.pause()
    waiting = [asyncio.ensure_future(store.find(digest_of("s1"))) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    server.resume()
    async with asyncio.timeout(40):
        assert await store.find(digest_of("s1")) is not None
    await store.close()


# --- TLS ---


@pytest.fixture(scope="module")
def tls_server(ca: trustme.CA) -> Iterator[PostgresServer]:
    with running() as server:
        server.use_tls(ca, "127.0.0.1", "db.example.com")
        yield server


@pytest.fixture
def tls(ca: trustme.CA, tmp_path: Path) -> PostgresqlTls:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return PostgresqlTls(ca=tmp_path / "ca.pem")


async def attempt(settings: PostgresqlSettings) -> str:
    """Why it cannot be used; an empty text if it can."""
    store = PostgresqlTokenStore(settings)
    try:
        return (await unavailable(store.heartbeat())).cause or ""
    except pytest.fail.Exception:
        return ""
    finally:
        await store.close()


async def test_a_server_that_proves_its_name_is_used(
    tls_server: PostgresServer, tls: PostgresqlTls, tmp_path: Path
) -> None:
    assert await attempt(settings_for(tls_server, folder=tmp_path, tls=tls)) == ""
    named = PostgresqlTls(ca=tls.ca, server_name="db.example.com")
    assert await attempt(settings_for(tls_server, folder=tmp_path, tls=named)) == ""


async def test_a_server_with_the_certificate_of_another_host_is_refused(
    tls_server: PostgresServer, tls: PostgresqlTls, tmp_path: Path
) -> None:
    other = PostgresqlTls(ca=tls.ca, server_name="other.example.com")
    cause = await attempt(settings_for(tls_server, folder=tmp_path, tls=other))
    assert cause.startswith("the server's certificate is not accepted: Hostname mismatch")


async def test_a_server_of_an_unknown_authority_is_refused(tls_server: PostgresServer, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    cause = await attempt(settings_for(tls_server, folder=tmp_path, tls=PostgresqlTls(ca=tmp_path / "other.pem")))
    assert cause.startswith("the server's certificate is not accepted: ")
    assert (await attempt(settings_for(tls_server, folder=tmp_path, tls=PostgresqlTls()))) != ""


async def test_a_server_without_tls_is_refused_where_tls_is_configured(
    postgresql_15: PostgresServer, tls: PostgresqlTls, tmp_path: Path
) -> None:
    assert await attempt(settings_for(postgresql_15, folder=tmp_path, tls=tls)) != ""


async def test_a_client_certificate_is_shown_and_read_anew(ca: trustme.CA, tls: PostgresqlTls, tmp_path: Path) -> None:
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"

    def write(name: str) -> None:
        issued = ca.issue_cert(common_name=name)
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))

    with running() as server:
        server.use_tls(ca, "127.0.0.1", ask_client=True)
        assert await attempt(settings_for(server, folder=tmp_path, tls=tls)) != ""
        shown = PostgresqlTls(ca=tls.ca, certificate=certificate, key=key)
        write("somebody else")
        # The server says so of the certificate, too.
        assert (await attempt(settings_for(server, folder=tmp_path, tls=shown))).startswith("the password is wrong")
        write(USER)
        assert await attempt(settings_for(server, folder=tmp_path, tls=shown)) == ""


@pytest.mark.parametrize(
    ("tls", "cause"),
    [
        (PostgresqlTls(ca=Path("/nowhere/ca.pem")), "the file of store.tls.ca cannot be read"),
        (PostgresqlTls(ca=Path(__file__)), "the file of store.tls.ca holds no certificate"),
        (
            PostgresqlTls(certificate=Path(__file__), key=Path(__file__)),
            "the client certificate is not a PEM certificate",
        ),
    ],
)
async def test_files_that_cannot_be_used_are_named(
    tls_server: PostgresServer, tmp_path: Path, tls: PostgresqlTls, cause: str
) -> None:
    assert (await attempt(settings_for(tls_server, folder=tmp_path, tls=tls))).startswith(cause)


# --- not from elsewhere ---


async def test_a_unix_socket_is_used(postgresql_15: PostgresServer, tmp_path: Path) -> None:
    hosts = (f"{postgresql_15.folder}:{postgresql_15.port}",)
    assert await attempt(settings_for(folder=tmp_path, hosts=hosts, password_file=None)) == ""


async def test_the_environment_says_nothing(
    postgresql_15: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(postgresql_15, folder=tmp_path)
    assert settings.password_file is not None
    monkeypatch.setenv("PGPASSWORD", settings.password_file.read_text().strip())
    monkeypatch.setenv("PGDATABASE", "nowhere")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "read-only")
    assert await attempt(settings) == ""
    without = settings_for(postgresql_15, folder=tmp_path, password_file=None)
    assert await attempt(without) != "", f"the password of {DATABASE} came from the environment"
