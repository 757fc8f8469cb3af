"""Both branches keep the same promises. What Windows says of access lists is simulated here; the rest is real.

`tests/interop/test_windows.py` runs the other branch with a Python for Windows.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostiary.core.platform.open_flags import FLAGS, OpenFlags
from ostiary.core.platform.private_files import BUSY_SECONDS, PosixFiles, PrivateFiles, WindowsFiles, set_mode

SID = "S-1-5-21-1-2-3-1001"
OPEN = f"O:{SID}D:AI(A;OICIID;FA;;;{SID})(A;OICIID;0x1200a9;;;BU)"


class SimulatedLists:
    """Access lists that a table keeps: of what is created with one, and what a folder hands down for all else."""

    def __init__(self) -> None:
        self.lists: dict[str, str] = {}

    def descriptor_of(self, path: str) -> str:
        return self.lists.get(path, OPEN)

    def create_folder(self, path: str, access_list: str) -> None:
        os.mkdir(path)
        self.lists[path] = f"O:{SID}{access_list}"

    def create_file(self, path: str, access_list: str) -> int:
        self.lists[path] = f"O:{SID}{access_list}"
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def user_sid(self) -> str:
        return SID

    def names_of(self, sid: str) -> frozenset[str]:
        return frozenset({sid})

    def open_to_all(self, path: str) -> None:
        self.lists[path] = OPEN

    def give_away(self, path: str) -> None:
        self.lists[path] = self.lists[path].replace(f"O:{SID}", "O:S-1-5-21-1-2-3-1002")


class Posix:
    def __init__(self) -> None:
        self.files: PrivateFiles = PosixFiles()

    def open_to_all(self, path: str) -> None:
        os.chmod(path, 0o777)


class Windows:
    def __init__(self) -> None:
        self.simulated = SimulatedLists()
        self.files: PrivateFiles = WindowsFiles(self.simulated, descriptor_of=lambda handle, flags: handle)

    def open_to_all(self, path: str) -> None:
        self.simulated.open_to_all(path)


@pytest.fixture(params=[Posix, Windows])
def system(request: pytest.FixtureRequest) -> Posix | Windows:
    made: Posix | Windows = request.param()
    return made


def put(files: PrivateFiles, path: Path, content: bytes) -> str:
    with os.fdopen(files.create(str(path)), "wb") as file:
        file.write(content)
    return str(path)


def is_private(files: PrivateFiles, path: str) -> bool:
    descriptor = files.open(path)
    try:
        return files.is_private(descriptor, path)
    finally:
        os.close(descriptor)


def test_what_is_created_is_private_until_somebody_opens_it(system: Posix | Windows, tmp_path: Path) -> None:
    path = put(system.files, tmp_path / "token", b"secret")
    assert is_private(system.files, path)
    system.open_to_all(path)
    assert not is_private(system.files, path)


def test_a_new_folder_is_ours_alone_until_somebody_opens_it(system: Posix | Windows, tmp_path: Path) -> None:
    folder = str(tmp_path / "deeper" / "ostiary")
    system.files.make_folder(folder)
    assert system.files.is_own_folder(folder)
    system.files.make_folder(folder)
    system.open_to_all(folder)
    assert not system.files.is_own_folder(folder), "an existing one is left as it is"


def test_a_folder_that_somebody_else_made_is_not_taken(tmp_path: Path) -> None:
    windows = Windows()
    (tmp_path / "ostiary").mkdir()
    windows.files.make_folder(str(tmp_path / "ostiary"))
    assert not windows.files.is_own_folder(str(tmp_path / "ostiary"))


def test_a_file_of_another_owner_is_not_private_on_windows(tmp_path: Path) -> None:
    windows = Windows()
    path = put(windows.files, tmp_path / "token", b"theirs")
    windows.simulated.give_away(path)
    assert not is_private(windows.files, path)


def test_a_file_is_no_folder_and_a_folder_no_file(system: Posix | Windows, tmp_path: Path) -> None:
    path = put(system.files, tmp_path / "token", b"")
    assert not system.files.is_own_folder(path)
    with pytest.raises(FileExistsError):
        system.files.create(path)


def test_a_file_is_replaced_in_one_step_and_removed(system: Posix | Windows, tmp_path: Path) -> None:
    put(system.files, tmp_path / "token", b"old")
    new = put(system.files, tmp_path / "new", b"new")
    system.files.replace(new, str(tmp_path / "token"))
    assert (tmp_path / "token").read_bytes() == b"new"
    system.files.remove(str(tmp_path / "token"))
    assert list(tmp_path.iterdir()) == []


def test_windows_waits_for_whoever_reads_a_file(tmp_path: Path) -> None:
    pauses: list[float] = []
    attempts = 0

    class Busy(WindowsFiles):
        def replace(self, new: str, path: str) -> None:
            def replace() -> None:
                nonlocal attempts
                attempts += 1
                if attempts < 4:
                    raise PermissionError(13, "somebody reads it")
                os.replace(new, path)

            self._unless_busy(replace)

    busy = Busy(SimulatedLists(), descriptor_of=lambda handle, flags: handle, pause=pauses.append)
    (tmp_path / "new").write_bytes(b"new")
    busy.replace(str(tmp_path / "new"), str(tmp_path / "token"))
    assert (tmp_path / "token").read_bytes() == b"new"
    assert len(pauses) == 3


def test_windows_does_not_wait_for_ever(tmp_path: Path) -> None:
    pauses: list[float] = []
    files = WindowsFiles(SimulatedLists(), descriptor_of=lambda handle, flags: handle, pause=pauses.append)

    def refuse() -> None:
        raise PermissionError(13, "for ever")

    with pytest.raises(PermissionError):
        files._unless_busy(refuse)
    assert sum(pauses) == pytest.approx(BUSY_SECONDS)


def test_a_mode_is_set_where_there_are_modes(tmp_path: Path) -> None:
    class NoModes:
        name = "nt"

        def fchmod(self, descriptor: int, mode: int) -> None:
            raise AssertionError("it would only set the read-only flag")

    with (tmp_path / "file").open("wb") as file:
        set_mode(file.fileno(), 0o640)
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o640
        set_mode(file.fileno(), 0o600, NoModes())
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o640


def test_flags_that_a_system_lacks_are_nothing() -> None:
    class Nt:
        O_NOINHERIT, O_BINARY = 0x80, 0x8000

    assert OpenFlags.of(Nt()) == OpenFlags(close_on_exec=0x8080, no_follow=0, no_block=0)
    assert OpenFlags(os.O_CLOEXEC, os.O_NOFOLLOW, os.O_NONBLOCK) == FLAGS
