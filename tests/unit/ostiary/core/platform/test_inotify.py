"""Changes of files are told, by the real system."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostiary.core.platform.inotify import CREATED, DELETED, IS_DIRECTORY, MOVED_TO, WRITTEN, Inotify
from tests.support.descriptors import descriptors, few_descriptors
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is of Linux")


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    opened = Inotify.open()
    assert opened is not None
    yield opened
    opened.close()


def test_each_change_of_a_directory_is_told_once(inotify: Inotify, tmp_path: Path) -> None:
    assert inotify.watch(str(tmp_path), WRITTEN | MOVED_TO | CREATED | DELETED)
    assert inotify.watch(str(tmp_path), WRITTEN | MOVED_TO | CREATED | DELETED)
    assert not inotify.wait(0)
    (tmp_path / "a").write_text("a")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "b").unlink()
    (tmp_path / "c").mkdir()
    assert inotify.wait(10)
    assert list(inotify.events()) == [CREATED, WRITTEN, MOVED_TO, DELETED, CREATED | IS_DIRECTORY]
    assert list(inotify.events()) == []
    assert not inotify.wait(0)


def test_what_is_not_there_cannot_be_watched(inotify: Inotify, tmp_path: Path) -> None:
    assert not inotify.watch(str(tmp_path / "nowhere"), WRITTEN)


def test_a_wait_is_ended_from_another_thread(inotify: Inotify) -> None:
    waits: list[bool] = []
    thread = threading.Thread(target=lambda: waits.append(inotify.wait(60)))
    thread.start()
    inotify.wake()
    thread.join(10)
    assert waits == [False]


def test_closing_twice_closes_nothing_else(inotify: Inotify) -> None:
    inotify.close()
    inotify.close()
    inotify.wake()
    assert inotify.fileno() == -1


def test_elsewhere_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert Inotify.open() is None


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_without_descriptors_there_is_none_and_none_is_lost(spare: int) -> None:
    before = descriptors()
    with few_descriptors(spare):
        assert Inotify.open() is None
    until(lambda: descriptors() <= before)
