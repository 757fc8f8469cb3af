"""What becomes of the store when its server is away, slow, full, somebody else's, or not to be used at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.redis.primary import BATCH
from ostiary_gateway.stores.redis.settings import RedisSettings, RedisTls
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, make_session, make_token
from tests.support.ports import free_port
from tests.support.redis import RedisServer, patient_settings, redis_server, write_certificates
from tests.support.retrying import until_it_works

Open = Callable[..., RedisTokenStore]
PASSWORD = "canary-9c1f"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """One that a test may stop, pause and change."""
    with redis_server(tmp_path / "server") as server:
        yield server


@pytest.fixture
def own(own_server: RedisServer) -> RedisSettings:
    return patient_settings(address=own_server.address)


class Line:
    """Passes bytes to a server and back. Once told so, it passes a request on, and cuts the line at the answer."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.loses = False
        self.address = ""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_on(reader, requests))
                both.create_task(self._pass_on(answers, writer, is_answer=True))
        except* ConnectionError:
            pass
        finally:
            writer.close()
            requests.close()

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        while data := await source.read(65536):
            if is_answer and self.loses:
                self.loses = False
                raise ConnectionResetError
            target.write(data)
        raise ConnectionResetError


@asynccontextmanager
async def losing_answers(server: RedisServer) -> AsyncIterator[Line]:
    line = Line(server)
    async with await asyncio.start_server(line.carry, "127.0.0.1") as listener:
        line.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield line


async def failure_of(store: RedisTokenStore) -> ProviderError:
    """Why nothing can be found."""
    with pytest.raises(ProviderError) as caught:
        await store.find(digest_of("t1"))
    assert caught.value.code == "token-store-unavailable"
    return caught.value


async def sign_in(store: RedisTokenStore, clock: FakeClock, name: str = "s1") -> None:
    session = make_session(clock, name)
    await store.add(session, [make_token(session, name)])


async def test_a_server_that_is_away_at_first_is_used_when_it_is_there(open_store: Open, tmp_path: Path) -> None:
    clock, server = FakeClock(), RedisServer(tmp_path / "server")
    store = open_store(patient_settings(address=server.address), clock=clock)
    error = await failure_of(store)
    assert "no connection to Redis" in (error.cause or "")
    assert error.where == server.address
    try:
        server.start()
        await sign_in(store, clock)
        assert await store.find(digest_of("s1")) is not None
    finally:
        server.end()


async def test_a_server_that_was_killed_is_used_again_when_it_is_back(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock
) -> None:
    store = open_store(own, clock=clock)
    await sign_in(store, clock)
    own_server.kill()
    await failure_of(store)
    with pytest.raises(ProviderError):
        await sign_in(store, clock, "s2")
    own_server.start()
    assert await store.find(digest_of("s1")) is not None
    await sign_in(store, clock, "s2")


async def test_a_connection_that_the_server_has_closed_meanwhile_is_not_used_for_a_change(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(own, clock=clock)
    await sign_in(store, clock)
    monkeypatch.setattr("ostiary_gateway.stores.redis.primary.IDLE_SECONDS", 0.0)
    own_server.kill()
    own_server.start()
    await sign_in(store, clock, "s2")


async def test_a_server_that_hangs_is_given_up_in_time_and_used_again_when_it_goes_on(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock
) -> None:
    await sign_in(open_store(own, clock=clock), clock)
    store = open_store(replace(own, timeout=1.0, connections=1), clock=clock)
    await until_it_works(lambda: store.find(digest_of("s1")))
    own_server.pause()
    try:
        # Those who wait are told, too: one batch after the other would take more than a minute.
        async with asyncio.timeout(45):
            errors = await asyncio.gather(*(failure_of(store) for _ in range(64 * BATCH)))
    finally:
        own_server.resume()
    assert {error.cause for error in errors} == {"Redis does not answer in time"}
    assert await until_it_works(lambda: store.find(digest_of("s1"))) is not None


async def test_a_server_whose_writes_are_paused_is_unavailable(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock
) -> None:
    await sign_in(open_store(own, clock=clock), clock)
    store = open_store(replace(own, timeout=0.5), clock=clock)
    await until_it_works(lambda: store.find(digest_of("s1")))
    own_server.ask("CLIENT", "PAUSE", 600_000, "WRITE")
    with pytest.raises(ProviderError) as caught:
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
    assert caught.value.cause == "Redis does not answer in time"
    own_server.ask("CLIENT", "UNPAUSE")
    await until_it_works(lambda: store.revoke(Revocation(RevocationKind.USER, "ann")))
    assert await until_it_works(lambda: store.find(digest_of("s1"))) is None


async def test_a_full_server_takes_no_sign_ins_but_revocations(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock
) -> None:
    store = open_store(own, clock=clock)
    await sign_in(store, clock)
    start = (await store.revocations_after(None)).head
    own_server.ask("CONFIG", "SET", "maxmemory", "1mb")
    for attempt in (sign_in(store, clock, "s2"), store.heartbeat()):
        with pytest.raises(ProviderError) as caught:
            await attempt
        assert caught.value.cause == "Redis is full: its maxmemory is used up"
    assert await store.find(digest_of("s1")) is not None
    assert await store.revoke(Revocation(RevocationKind.USER, "ann")) == 1
    assert await store.find(digest_of("s1")) is None
    assert [each.value for each in (await store.revocations_after(start)).revocations] == ["ann"]
    assert await store.session("s2") is None


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_not_used(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock, policy: str
) -> None:
    store = open_store(own, clock=clock)
    await sign_in(store, clock)
    own_server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(ProviderError) as caught:
        await store.heartbeat()
    assert f"its maxmemory-policy is {policy}" in (caught.value.cause or "")
    error = await failure_of(store)
    assert f"its maxmemory-policy is {policy}" in (error.cause or "")
    own_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await store.heartbeat()
    assert await store.find(digest_of("s1")) is not None


async def test_a_replica_is_not_used(open_store: Open, own_server: RedisServer, own: RedisSettings) -> None:
    own_server.ask("REPLICAOF", "127.0.0.1", free_port())
    error = await failure_of(open_store(own))
    assert error.cause == "the server is a read-only replica"


async def test_a_primary_that_becomes_a_replica_confirms_nothing_any_more(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock
) -> None:
    """It could still be read, and would never tell of a revocation that others made elsewhere."""
    store = open_store(own, clock=clock)
    head = (await store.revocations_after(None)).head
    own_server.ask("REPLICAOF", "127.0.0.1", free_port())
    with pytest.raises(ProviderError) as caught:
        await store.revocations_after(head)
    assert caught.value.cause == "the server is a read-only replica"


async def test_a_primary_without_the_replicas_that_it_needs_takes_nothing(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock
) -> None:
    store = open_store(own, clock=clock)
    await sign_in(store, clock)
    own_server.ask("CONFIG", "SET", "min-replicas-to-write", 1)
    with pytest.raises(ProviderError) as caught:
        await store.revocations_after(0)
    assert "min-replicas-to-write" in (caught.value.cause or "")


async def test_data_of_another_layout_is_left_alone(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock
) -> None:
    store = open_store(own, clock=clock)
    await sign_in(store, clock)
    own_server.ask("HSET", "{ostiary}:state", "version", "2")
    error = await failure_of(store)
    assert error.cause == "its data has the layout of another version of ostiary (2)"
    with pytest.raises(ProviderError):
        await sign_in(store, clock, "s2")
    with pytest.raises(ProviderError):
        await store.revoke(Revocation(RevocationKind.USER, "ann"))


async def test_a_change_whose_answer_was_lost_is_not_repeated(
    open_store: Open, own_server: RedisServer, own: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it was carried out; the caller decides."""
    # The answer that is lost must be the one to the change, and not to a PING before it.
    monkeypatch.setattr("ostiary_gateway.stores.redis.primary.IDLE_SECONDS", 600.0)
    async with losing_answers(own_server) as line:
        store = open_store(replace(own, address=line.address))
        await store.revoke(Revocation(RevocationKind.USER, "first"))
        line.loses = True
        with pytest.raises(ProviderError) as caught:
            await store.revoke(Revocation(RevocationKind.USER, "ann"))
        assert "no connection to Redis" in (caught.value.cause or "")
        assert [mark.value for mark in await store.marks()] == ["ann", "first"]
        line.loses = True
        assert [mark.value for mark in await store.marks()] == ["ann", "first"], "a question can be repeated"


async def test_scripts_that_the_server_has_forgotten_are_sent_again(
    open_store: Open, own_server: RedisServer, own: RedisSettings, clock: FakeClock
) -> None:
    store = open_store(own, clock=clock)
    await sign_in(store, clock)
    own_server.ask("SCRIPT", "FLUSH")
    assert await store.find(digest_of("s1")) is not None


# --- who we are ---


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "server", password=PASSWORD) as server:
        yield server


async def test_the_password_is_read_for_every_connection_and_said_nowhere(
    open_store: Open, guarded: RedisServer, tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "password"
    settings = patient_settings(address=guarded.address, password_file=file)
    store = open_store(settings, clock=clock)
    errors = [await failure_of(store)]
    assert "cannot be read" in (errors[-1].cause or "")
    file.write_text("canary-wrong\n")
    errors.append(await failure_of(store))
    assert errors[-1].cause == "Redis refuses the user or the password"
    file.write_text(PASSWORD + "\n")
    await sign_in(store, clock)
    assert [record for record in caplog.records if record.name.startswith("redis")] == []
    errors.append(await failure_of(open_store(replace(settings, password_file=None), clock=clock)))
    assert errors[-1].cause == "Redis refuses the user or the password"
    told = "".join([caplog.text, repr(store), *(f"{error} {error!r} {error.__dict__}" for error in errors)])
    assert "canary" not in told.replace(str(tmp_path), "")


async def test_a_user_without_a_right_is_told_which(
    open_store: Open, own_server: RedisServer, own: RedisSettings, tmp_path: Path, clock: FakeClock
) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    rules = ("on", f">{PASSWORD}", "~*", "&*", "+@all", "-evalsha", "-eval")
    own_server.ask("ACL", "SETUSER", "gateway", *rules)
    store = open_store(replace(own, username="gateway", password_file=tmp_path / "password"), clock=clock)
    error = await failure_of(store)
    assert "lacks a right" in (error.cause or "")
    assert "evalsha" in (error.cause or "")


async def test_the_rights_that_the_how_to_lists_are_enough(
    open_store: Open, own_server: RedisServer, own: RedisSettings, tmp_path: Path, clock: FakeClock
) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    page = Path("docs/how-to/keep-tokens-in-redis.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER ostiary ")]
    own_server.ask(*line.replace(">...", f">{PASSWORD}").split())
    store = open_store(replace(own, username="ostiary", password_file=tmp_path / "password"), clock=clock)
    await sign_in(store, clock)
    await store.wait_for_revocations(0, 0.01)
    assert await store.revoke(Revocation(RevocationKind.USER, "ann")) == 1
    await store.heartbeat()
    await store.sweep()
    await store.put_notes("t", {"a": b""}, seconds=1)
    await store.update_counts([("k", lambda state, now: ((1.0,), 60.0, None))])


# --- TLS ---


async def test_the_server_is_known_by_its_certificate(open_store: Open, tmp_path: Path, clock: FakeClock) -> None:
    files = write_certificates(tmp_path / "tls", trustme.CA())
    with redis_server(tmp_path / "server", tls=files) as server:
        settings = patient_settings(address=server.address, tls=RedisTls(ca=files / "ca.pem"))
        await sign_in(open_store(settings, clock=clock), clock)
        stranger = write_certificates(tmp_path / "stranger", trustme.CA())
        error = await failure_of(open_store(replace(settings, tls=RedisTls(ca=stranger / "ca.pem"))))
        assert "the certificate of the server is not accepted" in (error.cause or "")
        await failure_of(open_store(replace(settings, tls=None, timeout=0.5)))


async def test_a_certificate_of_another_host_is_not_accepted(open_store: Open, tmp_path: Path) -> None:
    files = write_certificates(tmp_path / "tls", trustme.CA(), "elsewhere.example.com")
    with redis_server(tmp_path / "server", tls=files) as server:
        settings = patient_settings(address=server.address, tls=RedisTls(ca=files / "ca.pem"))
        error = await failure_of(open_store(settings))
    assert "the certificate of the server is not accepted" in (error.cause or "")
    assert "127.0.0.1" in (error.cause or "")


async def test_we_present_a_certificate_where_the_server_asks_for_one(
    open_store: Open, tmp_path: Path, clock: FakeClock
) -> None:
    ca = trustme.CA()
    files = write_certificates(tmp_path / "tls", ca)
    with redis_server(tmp_path / "server", tls=files) as server:
        server.ask("CONFIG", "SET", "tls-auth-clients", "yes")
        ours = write_certificates(tmp_path / "ours", ca, "gateway.example.com")
        tls = RedisTls(ca=files / "ca.pem", certificate=ours / "tls.pem", key=ours / "key.pem")
        await sign_in(open_store(patient_settings(address=server.address, tls=tls), clock=clock), clock)
        without = patient_settings(address=server.address, tls=RedisTls(ca=files / "ca.pem"))
        await failure_of(open_store(without))
