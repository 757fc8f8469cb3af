"""The Unix socket: one question, one reply; whoever says nothing sensible gets none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.local_proxy import process as control_socket
from ostiary_gateway.local_proxy.process import ControlSocket, bind_socket

FAILURES = {"os": OSError(28, "canary"), "value": ValueError("canary"), "other": KeyError("canary")}


async def answer(line: str) -> bytes:
    if line == "fail":
        raise ConfigurationError("it failed", cause="because", hint="mend it", code="connect-unavailable")
    if line in FAILURES:
        raise FAILURES[line]
    if line == "hang":
        await asyncio.Event().wait()
    return line.encode()


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    path = str(tmp_path / "s")
    server = await ControlSocket(answer).serve(bind_socket(path))
    yield path
    server.close()


async def ask(path: str, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(data)
    writer.write_eof()
    reply = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return reply


async def test_a_question_gets_its_reply_or_its_error(path: str) -> None:
    assert await ask(path, b"hello\n") == b"ok\nhello"
    kind, _, content = (await ask(path, b"fail\n")).partition(b"\n")
    assert kind == b"error"
    assert json.loads(content) == {
        "summary": "it failed",
        "cause": "because",
        "hint": "mend it",
        "code": "connect-unavailable",
    }


@pytest.mark.parametrize("data", [b"\xff\xfe\n", b"x" * 5000 + b"\n"])
async def test_what_is_no_question_gets_nothing_and_the_next_one_its_reply(path: str, data: bytes) -> None:
    assert await ask(path, data) == b""
    assert await ask(path, b"hello\n") == b"ok\nhello"


@pytest.mark.parametrize("line", sorted(FAILURES))
async def test_a_failure_inside_is_logged_and_gets_a_reply(
    path: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind, _, content = (await ask(path, f"{line}\n".encode())).partition(b"\n")
    assert kind == b"error"
    assert json.loads(content)["code"] == "connect-unavailable"
    assert b"canary" not in content
    assert "failed inside the proxy" in caplog.text


async def test_one_too_many_is_told_so(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control_socket, "MOST_CLIENTS", 1)
    _, writer = await asyncio.open_unix_connection(path)
    writer.write(b"hang\n")
    reply = await ask(path, b"hello\n")
    writer.close()
    assert reply.startswith(b"error\n")
    assert b"it is answering 1 others" in reply
    assert "was refused" in caplog.text
