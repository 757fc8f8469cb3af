"""Private files and locks, on a real file system."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ostiary.cli.login import sessions as files
from ostiary.errors import ConfigurationError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ostiary" / "file"


def test_what_is_written_is_read_and_private(path: Path) -> None:
    files.write(str(path), b"secret")
    files.write(str(path), b"other")
    assert files.read(str(path)) == b"other"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_it_is_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        files.write(str(path), b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_is_not_there_is_nothing(path: Path) -> None:
    assert files.read(str(path)) is None
    files.remove(str(path))


def _make_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    "spoil",
    [lambda path: path.chmod(0o640), lambda path: path.chmod(0o602), _make_a_link, _make_a_pipe],
    ids=["group reads", "others write", "link", "pipe"],
)
def test_what_is_not_ours_alone_is_not_read(path: Path, spoil: Callable[[Path], None]) -> None:
    files.write(str(path), b"secret")
    spoil(path)
    with pytest.raises(ConfigurationError) as caught:
        files.read(str(path))
    assert caught.value.code == "session-file-unsafe"


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(path: Path) -> None:
    files.write(str(path), b"old")
    victim = path.with_name("victim")
    victim.write_text("untouched")
    path.unlink()
    path.symlink_to(victim)
    files.write(str(path), b"new")
    assert victim.read_text() == "untouched"
    assert files.read(str(path)) == b"new"


@pytest.mark.parametrize("mode", [0o770, 0o703])
def test_nothing_is_put_where_others_may_write(path: Path, mode: int) -> None:
    path.parent.mkdir(parents=True)
    path.parent.chmod(mode)
    with pytest.raises(ConfigurationError):
        files.write(str(path), b"secret")
    assert list(path.parent.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be stored"):
        files.write(str(tmp_path / "file" / "folder" / "name"), b"secret")


def test_one_holds_the_lock_and_the_next_waits_no_longer_than_told(path: Path) -> None:
    with files.hold_lock(str(path), 0) as first, files.hold_lock(str(path), 0.01) as second:
        assert (first, second) == (True, False)
    with files.hold_lock(str(path), 0) as third:
        assert third
