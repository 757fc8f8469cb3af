"""The process beside the program that asked for a credential: begun where it may be needed, and gone with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostiary.cli import companion
from ostiary.cli.cached_token import file_content, file_name, state_folder, tells_of_step_up, usable_answer

OSTIARY = Path(sys.executable).parent / "ostiary"
ANSWER = b'{"status":{"token":"ost_canary"}}\n'
INTERACTIVE = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":%s}}'


@pytest.fixture
def gateway() -> Iterator[socket.socket]:
    """Something that accepts connections at the gateway's address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


def state(home: Path, gateway: socket.socket, *, step_up: bool) -> str:
    """A machine that is signed in; gives the gateway's address."""
    server = f"http://127.0.0.1:{gateway.getsockname()[1]}"
    folder = Path(state_folder({b"HOME": str(home).encode()}) or "")
    folder.mkdir(parents=True, mode=0o700)
    now, file = int(time.time()), folder / f"{file_name(server, 'default')}.token"
    file.touch(0o600)
    credential = (
        b'{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"ost_c"}}\n'
    )
    content = file_content(obtained=now, renew_at=now + 900, v1=credential, v1beta1=credential, step_up=step_up)
    file.write_bytes(content)
    return server


def get_token(home: Path, server: str, alive: int, *, interactive: str = "true", by: tuple[str, ...] = ()) -> bytes:
    """Run get-token as a client does that reads stdout and stderr to their ends; what it starts holds *alive*."""
    done = subprocess.run(
        [*by, str(OSTIARY), "get-token", "--server", server],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "KUBERNETES_EXEC_INFO": INTERACTIVE % interactive},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        pass_fds=(alive,),
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


class Alive:
    """A pipe whose end tells that all processes are gone that were given its writing end."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()

    def wait_until_gone(self) -> None:
        os.close(self.writing)
        with os.fdopen(self._reading, "rb") as reading:
            assert reading.read() == b""


def has_connection(gateway: socket.socket) -> bool:
    gateway.setblocking(False)
    try:
        gateway.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_a_file_says_whether_the_gateway_has_rules() -> None:
    for step_up in (False, True):
        data = file_content(obtained=1000, renew_at=2000, v1=ANSWER, v1beta1=ANSWER, step_up=step_up)
        assert usable_answer(data, b"v1", 1500) == ANSWER
        assert tells_of_step_up(data) is step_up


def test_the_client_does_not_wait_for_it_and_it_asks_while_the_client_runs(
    tmp_path: Path, gateway: socket.socket
) -> None:
    alive = Alive()
    assert b"ost_c" in get_token(tmp_path, state(tmp_path, gateway, step_up=True), alive.writing)
    connection, _ = gateway.accept()
    with connection, connection.makefile("rb") as stream:
        assert stream.readline() == b"POST /auth/step-up HTTP/1.1\r\n"
        head = b"".join(iter(stream.readline, b"\r\n")).lower()
        assert b"authorization: bearer ost_c" in head
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    # A gateway that knows nothing of it is left alone.
    alive.wait_until_gone()


def test_it_ends_with_a_client_that_is_quick_and_has_asked_nobody(tmp_path: Path, gateway: socket.socket) -> None:
    alive = Alive()
    quick = (sys.executable, "-I", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], close_fds=False)")
    get_token(tmp_path, state(tmp_path, gateway, step_up=True), alive.writing, by=quick)
    alive.wait_until_gone()
    assert not has_connection(gateway)


@pytest.mark.parametrize(("step_up", "interactive"), [(False, "true"), (True, "false")])
def test_there_is_none_without_rules_or_without_a_person(
    tmp_path: Path, gateway: socket.socket, step_up: bool, interactive: str
) -> None:
    """We, the client, run on: nothing but its absence ends it."""
    alive = Alive()
    get_token(tmp_path, state(tmp_path, gateway, step_up=step_up), alive.writing, interactive=interactive)
    alive.wait_until_gone()
    assert not has_connection(gateway)


def test_without_fork_the_new_interpreter_waits_and_does_nothing_for_a_program_that_has_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    words = [sys.executable, "-X", "importtime", "-P", "-c", companion._WAIT_AND_ACCOMPANY, "https://g", "a"]
    done = subprocess.run([*words, str(ended.pid)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "ostiary.cli.companion" in done.stderr
    assert "ostiary.cli.login" not in done.stderr
