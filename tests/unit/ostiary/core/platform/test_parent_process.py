"""The interpreter of Windows under the names of `posix`, with a simulated `nt` on top of this system."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from ostiary.core.platform.parent_process import WindowsInterpreter


class SimulatedNt:
    """What `nt` has of `os`. Text is what it reads unless it is told otherwise."""

    O_RDONLY, O_WRONLY, O_CREAT, O_APPEND = os.O_RDONLY, os.O_WRONLY, os.O_CREAT, os.O_APPEND
    O_NOINHERIT, O_BINARY = 1 << 28, 1 << 29

    def __init__(self) -> None:
        self.environ = {"LocalAppData": "C:\\Users\\ann\\AppData\\Local", "BROKEN": "\ud800"}
        self.read, self.write, self.close, self.stat = os.read, os.write, os.close, os.stat
        self.ftruncate, self.isatty, self._exit = os.ftruncate, os.isatty, os._exit
        self.fstat, self.getpid = os.fstat, lambda: 40
        self.opened: list[int] = []

    def getppid(self) -> int:
        return 30

    def open(self, path: str, flags: int, mode: int) -> int:
        self.opened.append(flags)
        return os.open(path, flags & ~self.O_NOINHERIT & ~self.O_BINARY, mode)


@pytest.fixture
def nt() -> SimulatedNt:
    return SimulatedNt()


@pytest.fixture
def system(nt: SimulatedNt) -> WindowsInterpreter:
    return WindowsInterpreter(
        cast(ModuleType, nt), lambda: {10: (4, "kubectl.exe"), 20: (10, "ostiary.exe"), 40: (20, "python.exe")}
    )


def test_names_of_variables_are_the_same_in_any_case_and_what_is_no_text_is_left_out(
    system: WindowsInterpreter,
) -> None:
    assert system.environ == {b"LOCALAPPDATA": b"C:\\Users\\ann\\AppData\\Local"}


def test_files_are_opened_as_bytes(system: WindowsInterpreter, nt: SimulatedNt, tmp_path: Path) -> None:
    path = str(tmp_path / "token")
    os.close(system.open(path, system.O_WRONLY | system.O_CREAT | system.O_CLOEXEC | system.O_NOFOLLOW, 0o600))
    assert nt.opened[0] & nt.O_BINARY
    assert nt.opened[0] & nt.O_NOINHERIT


def test_a_file_of_the_folder_counts_as_private_and_a_folder_is_no_file(
    system: WindowsInterpreter, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("x")
    descriptor = os.open(tmp_path / "token", os.O_RDONLY)
    status = system.fstat(descriptor)
    assert (status.st_mode, status.st_uid, status.st_size) == (0o100600, system.geteuid(), 1)
    os.close(descriptor)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert system.fstat(descriptor).st_mode & 0o170000 == 0o040000
    os.close(descriptor)


def test_the_asker_is_the_program_that_runs_the_launcher(system: WindowsInterpreter, nt: SimulatedNt) -> None:
    assert system.getppid() == 10

    def fail() -> dict[int, tuple[int, str]]:
        raise OSError(5, "Access is denied")

    assert WindowsInterpreter(cast(ModuleType, nt), fail).getppid() == 30
