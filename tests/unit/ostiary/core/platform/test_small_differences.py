"""Locks, keys in memory, signals, the terminal, and which program asks: both branches of each."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import signal
import threading
from pathlib import Path

import pytest

from ostiary.cli.login.terminal import POSIX, WINDOWS, TerminalDevice
from ostiary.core.platform.file_locks import FileLock, PosixLock, WindowsLock
from ostiary.core.platform.memory_files import named_pipe
from ostiary.core.platform.parent_process import asking_process
from ostiary.core.platform.signals import blocked_by_mask, put_off_by_handler


class SimulatedMsvcrt:
    """`msvcrt.locking`, on top of the locks of this system."""

    LK_NBLCK = 2

    def locking(self, descriptor: int, mode: int, size: int, /) -> None:
        assert (mode, size, os.lseek(descriptor, 0, os.SEEK_CUR)) == (self.LK_NBLCK, 1, 0)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None


@pytest.mark.parametrize("lock", [PosixLock(fcntl), WindowsLock(SimulatedMsvcrt())], ids=["posix", "windows"])
def test_one_holds_a_lock_until_the_file_is_closed(lock: FileLock, tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    os.write(first, b"somewhere behind the first byte")
    assert lock.take(first)
    assert not lock.take(second)
    os.close(first)
    assert lock.take(second)
    os.close(second)


class SimulatedPipes:
    """Named pipes of Windows, as named pipes of this system: who opens one to write waits for whoever reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[tuple[str, str]] = []

    def user_sid(self) -> str:
        return "S-1-5-21-1-2-3-1001"

    def path(self, name: str) -> str:
        return str(self.folder / name.rpartition("\\")[2])

    def new_pipe(self, name: str, sid: str) -> int:
        os.mkfifo(self.path(name))
        self.made.append((name, sid))
        return len(self.made) - 1

    def open_pipe(self, name: str) -> int:
        if not os.path.exists(self.path(name)):
            raise FileNotFoundError(errno.ENOENT, "it is closed")
        return os.open(self.path(name), os.O_RDONLY)

    def serve_pipe(self, pipe: int, content: bytes) -> None:
        path = self.path(self.made[pipe][0])
        with open(path, "wb", buffering=0) as writer:
            os.unlink(path)
            try:
                writer.write(content)
            except BrokenPipeError:
                return


def test_a_key_goes_through_a_pipe_that_only_this_user_can_open(tmp_path: Path) -> None:
    pipes = SimulatedPipes(tmp_path)
    with named_pipe(b"key", pipes) as first, named_pipe(b"other key", pipes) as second:
        assert first != second
        with open(pipes.path(second), "rb") as file:
            assert file.read() == b"other key"
        with open(pipes.path(first), "rb") as file:
            assert file.read() == b"key"
    assert [sid for _, sid in pipes.made] == [pipes.user_sid()] * 2
    assert first.startswith("\\\\.\\pipe\\ostiary-")


def test_a_pipe_that_nobody_reads_is_let_go(tmp_path: Path) -> None:
    before = threading.active_count()
    with named_pipe(b"key", SimulatedPipes(tmp_path)):
        pass
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocked", [blocked_by_mask, put_off_by_handler])
def test_ctrl_c_comes_after_the_block(blocked) -> None:  # type: ignore[no-untyped-def]
    steps = []

    def keep() -> None:
        with blocked():
            signal.raise_signal(signal.SIGINT)
            steps.append("kept")

    with pytest.raises(KeyboardInterrupt):
        keep()
    assert steps == ["kept"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_gets_no_signals_and_puts_none_off() -> None:
    def block() -> None:
        with put_off_by_handler():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()


def test_the_terminal_is_asked_under_two_names() -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"ann\n")
    name = os.ttyname(theirs)
    terminal = TerminalDevice(reads=name, writes=name)
    assert terminal.is_present()
    assert terminal.ask("username: ") == "ann"
    shown = b""
    while b"username: " not in shown:
        # The terminal shows what was typed as well, before or after it.
        shown += os.read(ours, 100)
    os.close(ours)
    os.close(theirs)


def test_a_file_is_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not TerminalDevice(str(tmp_path / "file"), "").is_present()
    assert not TerminalDevice(str(tmp_path / "nothing"), "").is_present()
    assert (POSIX.reads, WINDOWS.reads, WINDOWS.writes) == ("/dev/tty", "CONIN$", "CONOUT$")


# What a process table of Windows shows for kubectl with a plugin in a virtual environment.
TABLE = {
    10: (4, "kubectl.exe"),
    20: (10, "ostiary.exe"),
    30: (20, "python.exe"),
    40: (30, "python.exe"),
}


def test_the_program_that_runs_the_launcher_asks(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, dict[int, tuple[int, str]], int, int, int]] = [
        ("environment", TABLE, 40, 30, 10),
        ("no environment", TABLE, 30, 20, 10),
        ("kubectl ostiary", {**TABLE, 20: (10, "Kubectl-Ostiary.EXE")}, 40, 30, 10),
        ("no launcher", {**TABLE, 20: (10, "python.exe")}, 40, 30, 30),
        ("parent gone", {40: (30, "python.exe")}, 40, 30, 30),
        ("no table", {}, 40, 30, 30),
        ("loop", {1: (1, "python.exe")}, 1, 1, 1),
    ]
    for case, processes, us, parent, asker in cases:
        with subtests.test(case):
            assert asking_process(processes, us, parent) == asker
