"""The agent's socket: for those whom the kernel names, and nobody else."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.cli.agent.keeper import HeldToken, TokenKeeper
from ostiary.cli.agent.token_socket import TokenSocket, ask_health
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.testing import FakeClock

NOBODY = 65534


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def ask(path: Path, target: str, **headers: str) -> tuple[int, str]:
    connection = Connection(path)
    try:
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Bench:
    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.path, self.clock, self.said = folder / "agent.sock", clock, list[str]()
        self.keeper = TokenKeeper(
            lambda: HeldToken(Secret("the-token"), clock.now() + timedelta(hours=1), "bot"),
            [],
            clock=clock,
            say=print,
        )

    @contextmanager
    def served(self, *, mode: int = 0o600, users: frozenset[int] | None = None) -> Iterator[None]:
        users = frozenset({os.getuid()}) if users is None else users
        with TokenSocket(str(self.path), self.keeper, mode=mode, users=users, say=self.said.append):
            yield


@pytest.fixture
def bench(tmp_path: Path, clock: FakeClock) -> Bench:
    return Bench(tmp_path, clock)


def test_a_program_asks_for_the_token(bench: Bench) -> None:
    with bench.served():
        assert ask(bench.path, "/token") == (503, "there is no token at the moment\n")
        assert ask(bench.path, "/healthz") == (503, "starting\n")
        bench.keeper.refresh()
        assert ask(bench.path, "/token") == (200, "the-token")
        status, text = ask(bench.path, "/token", Accept="application/json")
        assert (status, json.loads(text)["token"], json.loads(text)["user"]) == (200, "the-token", "bot")
        assert ask(bench.path, "/healthz") == (200, "fresh\n")
        assert ask(bench.path, "/other")[0] == 404
        assert ask_health(str(bench.path)) == (200, "fresh")
        bench.clock.advance(3600)
        assert ask(bench.path, "/token")[0] == 503
        assert ask(bench.path, "/healthz") == (503, "expired\n")
    assert not bench.path.exists()


def test_the_socket_is_its_owners_alone_from_the_first_moment(bench: Bench) -> None:
    with bench.served():
        assert stat.S_IMODE(bench.path.stat().st_mode) == 0o600
    with bench.served(mode=0o660):
        assert stat.S_IMODE(bench.path.stat().st_mode) == 0o660


CLIENT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
text = b""
with socket.socket(socket.AF_UNIX) as s:
    s.connect(sys.argv[1])
    try:
        s.sendall(b"GET /token HTTP/1.0\\r\\n\\r\\n")
        while part := s.recv(4096): text += part
    except (BrokenPipeError, ConnectionResetError): pass
print(text.decode())
"""


@pytest.mark.needs("root")
def test_another_user_is_refused_whatever_the_mode_is(bench: Bench) -> None:
    for folder in (bench.path.parent, *bench.path.parent.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    bench.keeper.refresh()

    def as_nobody() -> str:
        client = [sys.executable, "-I", "-c", CLIENT, str(bench.path), str(NOBODY)]
        done = subprocess.run(client, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with bench.served(mode=0o666):
        assert "the-token" not in as_nobody()
        assert bench.said == [f"a process of the user {NOBODY} was refused at the socket"]
    with bench.served(mode=0o666, users=frozenset({NOBODY})):
        assert "the-token" in as_nobody()


def test_the_socket_of_an_agent_that_is_gone_is_replaced_and_that_of_a_living_one_is_not(bench: Bench) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(bench.path))
    with (
        bench.served(),
        pytest.raises(ConfigurationError, match="the socket cannot be opened") as raised,
        bench.served(),
    ):
        raise AssertionError
    assert raised.value.cause == "another agent answers there"


def test_a_file_that_is_no_socket_stays(bench: Bench) -> None:
    bench.path.write_text("important")
    with pytest.raises(ConfigurationError), bench.served():
        raise AssertionError
    assert bench.path.read_text() == "important"


def test_a_client_that_says_nothing_or_too_much_holds_up_nobody(bench: Bench) -> None:
    bench.keeper.refresh()
    with bench.served():
        silent = [socket.socket(socket.AF_UNIX) for _ in range(8)]
        try:
            for connection in silent:
                connection.connect(str(bench.path))
            silent[0].sendall(b"GET /" + b"x" * 100_000)
            assert ask(bench.path, "/token") == (200, "the-token")
        finally:
            for connection in silent:
                connection.close()
