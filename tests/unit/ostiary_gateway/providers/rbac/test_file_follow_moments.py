"""Files that change, or cannot be read, just while they are read: nothing comes into force in part, or is missed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.providers.rbac import file_load as load
from ostiary_gateway.providers.rbac.file_follow import FollowedFiles
from ostiary_gateway.providers.rbac.file_load import FileBytes
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.rbac import Manifests
from tests.support.descriptors import few_descriptors
from tests.unit.ostiary_gateway.providers.rbac.followed import follow, in_force, write


class ClockThatActs(FakeClock):
    """Does something when it is read next: it is read between two files."""

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[], object] | None = None

    def now(self) -> datetime:
        act, self.act = self.act, None
        if act is not None:
            act()
        return super().now()


def mount(directory: Path, version: str) -> None:
    """Exchange all linked files at once, as a mounted ConfigMap changes."""
    (directory / "..new").symlink_to(version)
    (directory / "..new").replace(directory / "..data")


def test_files_that_are_exchanged_while_they_are_read_are_never_in_force_in_part(tmp_path: Path) -> None:
    for version in ("one", "two", "three"):
        (tmp_path / f"..{version}").mkdir()
        for name in ("a", "z"):
            write(tmp_path / f"..{version}" / f"{name}.yaml", **{name: version})
    for name in ("a", "z"):
        (tmp_path / f"{name}.yaml").symlink_to(f"..data/{name}.yaml")
    # Stays the same, so the clock is read for it: between a and z.
    write(tmp_path / "m.yaml", m="same")
    mount(tmp_path, "..one")
    clock = ClockThatActs()
    files = FollowedFiles([tmp_path], defaults=False, watch=False, clock=clock)
    mount(tmp_path, "..two")
    clock.act = lambda: mount(tmp_path, "..three")
    assert files.check_now()
    assert in_force(files) == {"a": "three", "m": "same", "z": "three"}
    assert files.policy.index.revision == 2


def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", a="alice")
    files = follow(tmp_path)
    with few_descriptors():
        assert not files.check_now()
        problems = files.problems
    assert [(problem.message, problem.place.file) for problem in problems] == [
        ("it cannot be read: Too many open files", str(tmp_path))
    ]
    assert in_force(files) == {"a": "alice"}
    assert not files.check_now()
    assert not files.problems
    with few_descriptors(), pytest.raises(ConfigurationError):
        follow(tmp_path)


def test_a_changed_file_that_could_not_be_read_is_read_as_soon_as_it_can(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    write(file, a="alice")
    files = FollowedFiles([file], defaults=False, watch=False)
    write(file, a="anne")
    with few_descriptors():
        assert not files.check_now()
        assert not files.check_now()
        problems = files.problems
    assert [problem.message for problem in problems] == ["it cannot be read: Too many open files"]
    assert in_force(files) == {"a": "alice"}
    # It looks as it did when it could not be read.
    assert files.check_now()
    assert in_force(files) == {"a": "anne"}
    assert not files.problems


def test_after_an_error_of_ours_the_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.yaml", a="alice")
    files = follow(tmp_path)
    write(tmp_path / "a.yaml", a="anne")

    def fail(given: list[FileBytes]) -> list[Manifests]:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(load, "parse_files", fail)
        with pytest.raises(MemoryError):
            files.check_now()
    assert files.check_now()
    assert in_force(files) == {"a": "anne"}


def test_a_file_that_is_there_only_while_it_is_read_does_not_count(tmp_path: Path) -> None:
    files = load.ManifestFiles([tmp_path / "a.yaml"])
    look = files.look()
    write(tmp_path / "a.yaml", a="alice")
    (manifests,) = files.read(look).values()
    assert not manifests.bindings
    assert manifests.problems


async def test_a_watch_that_could_not_be_started_is_started_by_the_next_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.yaml", a="alice")
    files = FollowedFiles([tmp_path], defaults=False, watch=True)

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            files.start()
    assert files.to_start
    files.start()
    assert "ostiary-rbac-watch" in {thread.name for thread in threading.enumerate()}
    await files.close()
