"""The process: what it replies at its socket, one lock for one process, and when it ends."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError, OstiaryError
from ostiary_gateway.local_proxy import record as records
from ostiary_gateway.local_proxy.process import ConnectProcess, hold_life_lock
from ostiary_gateway.local_proxy.record import ConnectRecord
from ostiary_gateway.testing import FakeClock
from tests.support.connect_listener import connect_record
from tests.support.http1 import until
from tests.support.plugins import write_kubeconfig


@pytest.fixture
def record(tmp_path: Path) -> ConnectRecord:
    kubeconfig = write_kubeconfig(tmp_path / "config", server="https://one.example", user={"token": "real-token"})
    record = connect_record(kubeconfig)
    records.save(record)
    return record


@pytest.fixture
async def process(clock: FakeClock) -> AsyncIterator[ConnectProcess]:
    process = ConnectProcess(clock=clock)
    yield process
    await process.answer("forget test@ostiary")


async def test_who_asks_gets_a_token_for_the_listener_of_that_context(
    process: ConnectProcess, record: ConnectRecord
) -> None:
    first, second = [json.loads(await process.answer(f"token {v} test@ostiary")) for v in ("v1", "v1beta1")]
    assert first["apiVersion"] == "client.authentication.k8s.io/v1"
    assert second["apiVersion"] == "client.authentication.k8s.io/v1beta1"
    assert first["status"]["token"] == second["status"]["token"]
    assert first["status"]["expirationTimestamp"]
    status = json.loads(await process.answer("status"))
    (context,) = status["contexts"]
    assert (context["name"], context["server"], context["cluster"]) == (
        "test@ostiary",
        record.server,
        "https://one.example",
    )
    assert "token" not in json.dumps(status)


async def test_many_who_ask_at_once_open_one_listener(process: ConnectProcess, record: ConnectRecord) -> None:
    replies = await asyncio.gather(*[process.answer("token v1 test@ostiary") for _ in range(10)])
    assert len(set(replies)) == 1


@pytest.mark.parametrize("line", ["token v1 other", "token v1 ", "check other", "unknown", "", "token"])
async def test_what_it_does_not_know_is_an_error(process: ConnectProcess, record: ConnectRecord, line: str) -> None:
    with pytest.raises(OstiaryError):
        await process.answer(line)


async def test_a_certificate_that_has_expired_is_told(process: ConnectProcess, record: ConnectRecord) -> None:
    records.save(replace(record, certificate=replace(record.certificate, expires_at=1)))
    with pytest.raises(ConfigurationError) as raised:
        await process.answer("token v1 test@ostiary")
    assert "has expired" in raised.value.summary
    assert "ostiary connect test --name test@ostiary" in str(raised.value.hint)


async def test_a_changed_record_moves_the_listener_and_its_old_tokens_are_gone(
    process: ConnectProcess, record: ConnectRecord
) -> None:
    before = json.loads(await process.answer("token v1 test@ostiary"))
    moved = replace(record, port=connect_record(Path(record.kubeconfig)).port)
    records.save(moved)
    after = json.loads(await process.answer("token v1 test@ostiary"))
    assert after["status"]["token"] != before["status"]["token"]
    (context,) = json.loads(await process.answer("status"))["contexts"]
    assert context["server"] == moved.server
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", record.port)


async def test_it_ends_when_nobody_has_used_it(
    process: ConnectProcess, record: ConnectRecord, clock: FakeClock
) -> None:
    records.save(replace(record, idle_seconds=600))
    await process.answer("token v1 test@ostiary")
    clock.advance(599)
    # Looking at it is not using it.
    await process.answer("status")
    process.tick(0)
    assert not stops(process)
    await process.answer("token v1 test@ostiary")
    # Nor is a connection, which anybody on this machine can hold open.
    trust = ssl.create_default_context(cadata=record.certificate.authority_pem)
    _, writer = await asyncio.open_connection("127.0.0.1", record.port, ssl=trust)
    await until(lambda: connections(process) == 1)
    clock.advance(600)
    process.tick(0)
    assert stops(process)
    writer.close()


def stops(process: ConnectProcess) -> bool:
    return process.is_stopping


def connections(process: ConnectProcess) -> int:
    return sum(listener.connections for listener in process.listeners)


async def test_it_serves_a_socket_that_is_the_users_alone_and_removes_it(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "s"
    # What a killed process has left behind, or anybody has put there.
    path.write_text("stale")
    process = ConnectProcess(clock=clock)
    running = asyncio.ensure_future(process.run(str(path)))
    await until(path.is_socket)
    assert path.stat().st_mode & 0o777 == 0o600
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"stop\n")
    assert (await reader.read()).startswith(b"ok\n")
    await asyncio.wait_for(running, 30)
    assert not path.exists()


def test_one_process_has_the_lock(tmp_path: Path) -> None:
    held = hold_life_lock(str(tmp_path))
    assert held is not None
    assert hold_life_lock(str(tmp_path)) is None
    os.close(held)
    again = hold_life_lock(str(tmp_path))
    assert again is not None
    os.close(again)
