"""The exec plugin's quick path: which folder, which user, and nothing imported that takes time."""

from __future__ import annotations

import os
import posix
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ostiary.cli import quick_token
from ostiary.cli.quick_token import ask, is_name, peer_user, runtime_folder, socket_path

SLOW = {"os", "re", "json", "enum", "argparse", "socket", "selectors", "ssl", "asyncio", "typing", "dataclasses"}
INFO = b'{"apiVersion":"client.authentication.k8s.io/%s","kind":"ExecCredential","spec":{"interactive":false}}'
SHOW = """
import sys
before = set(sys.modules)
from ostiary.cli import main
code = main(["connect", "token", "test@ostiary"])
print(code, *sorted(set(sys.modules) - before), file=sys.stderr)
"""


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("r")
    # The quick path reads the environment that the process began with.
    monkeypatch.setitem(posix.environ, b"XDG_RUNTIME_DIR", os.fsencode(folder))
    (folder / "ostiary").mkdir(0o700)
    return folder


@contextmanager
def answering(runtime: Path, reply: bytes) -> Iterator[list[bytes]]:
    """A process of ours at the socket that replies so to one question."""
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_path(f"{runtime}/ostiary"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(4096))
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield heard
        thread.join()


def test_the_reply_is_printed_as_it_comes_and_little_is_imported(runtime: Path) -> None:
    with answering(runtime, b"ok\n{credential}\n") as heard:
        environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(runtime),
            "KUBERNETES_EXEC_INFO": (INFO % b"v1beta1").decode(),
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{SHOW}"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "{credential}\n"
    assert heard == [b"token v1beta1 test@ostiary\n"]
    code, *imported = done.stderr.split()
    assert code == "0"
    assert not SLOW & set(imported)


@pytest.mark.parametrize("reply", [b'error\n{"summary": "no"}', b"", b"half"])
def test_anything_else_is_left_to_the_slower_path(
    runtime: Path, reply: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick_token, "failure", None)
    with answering(runtime, reply):
        assert not quick_token.print_token(["test@ostiary"])
    assert capfd.readouterr().out == ""
    # What was asked is not asked again.
    assert quick_token.failure == (reply if reply.startswith(b"error") else None)


@pytest.mark.parametrize("argv", [[], ["--help"], ["a", "b"], ["with\nline"], [""], ["x" * 300]])
def test_a_command_line_that_is_no_name_is_not_asked_about(runtime: Path, argv: list[str]) -> None:
    assert not quick_token.print_token(argv)


def test_nobody_answers(runtime: Path) -> None:
    assert not quick_token.print_token(["test@ostiary"])
    with pytest.raises(FileNotFoundError):
        ask(b"status")


def test_a_name_is_one_line() -> None:
    assert is_name("prod eu@ostiary")
    assert not any(map(is_name, ("", "a\nb", "a\x1bb", "x" * 201)))


def test_the_kernel_tells_who_is_there() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer_user(ours) == os.geteuid()


def test_the_folder_is_the_same_whichever_shell_asks() -> None:
    home = {b"HOME": b"/home/jane"}
    assert runtime_folder({**home, b"XDG_RUNTIME_DIR": b"/run/user/7"}) == "/run/user/7/ostiary"
    own = runtime_folder(home)
    assert own is not None
    if not Path(f"/run/user/{os.geteuid()}").exists():
        # Of this machine: several may share a home.
        assert own == f"/home/jane/.local/state/ostiary-{os.geteuid()}/run-{os.uname().nodename}"
        assert runtime_folder({**home, b"XDG_RUNTIME_DIR": b"relative"}) == own
        assert runtime_folder({}) is None
