"""A watched file is read again when it looks different, and never trusted while it cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostiary.core.watched_file import WatchedFile, fingerprint, is_settled, watched_yaml
from ostiary.core.yaml import ConfigReader, Document, parse
from ostiary.errors import ConfigurationError
from ostiary_gateway.testing import FakeClock


class Reader:
    """Counts how often the file was read."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, path: str) -> str:
        self.times += 1
        return Path(path).read_text()


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def path(tmp_path: Path, clock: FakeClock) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    _written(path, clock, seconds_ago=60)
    return path


def _written(path: Path, clock: FakeClock, *, seconds_ago: float) -> None:
    when = clock.now().timestamp() - seconds_ago
    os.utime(path, (when, when))


def test_a_file_that_stays_the_same_is_read_once(path: Path, reader: Reader, clock: FakeClock) -> None:
    file = WatchedFile(path, reader, clock=clock)
    assert [file.current() for _ in range(3)] == ["one"] * 3
    assert reader.times == 1


def test_a_changed_file_is_read_at_the_next_look(path: Path, reader: Reader, clock: FakeClock) -> None:
    file = WatchedFile(path, reader, clock=clock)
    file.current()
    path.write_text("two")
    _written(path, clock, seconds_ago=30)
    assert file.current() == "two"


def test_a_file_written_a_moment_ago_is_read_again_however_it_looks(
    path: Path, reader: Reader, clock: FakeClock
) -> None:
    file = WatchedFile(path, reader, clock=clock)
    _written(path, clock, seconds_ago=1)
    file.current()
    path.write_text("two")
    _written(path, clock, seconds_ago=1)
    assert file.current() == "two"


def test_a_file_that_was_given_its_old_time_and_size_again_is_read(
    path: Path, reader: Reader, clock: FakeClock
) -> None:
    """As ``cp --preserve`` leaves it."""
    file = WatchedFile(path, reader, clock=clock)
    assert file.current() == "one"
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_text("two")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.current() == "two"


def test_a_file_that_cannot_be_seen_has_no_fingerprint(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "absent") is None
    assert fingerprint("a\0b") is None


def test_files_are_settled_when_the_newest_is(path: Path, tmp_path: Path, clock: FakeClock) -> None:
    newer = tmp_path / "newer"
    newer.write_text("two")
    _written(newer, clock, seconds_ago=1)
    assert is_settled([], clock)
    assert is_settled([None, fingerprint(path)], clock)
    assert not is_settled([fingerprint(path), fingerprint(newer)], clock)
    clock.advance(seconds=2)
    assert is_settled([fingerprint(path), fingerprint(newer)], clock)


def test_a_file_exchanged_behind_a_link_is_read(tmp_path: Path, reader: Reader, clock: FakeClock) -> None:
    """As the files of a mounted ConfigMap are."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        _written(tmp_path / name, clock, seconds_ago=60)
    link = tmp_path / "link"
    link.symlink_to("one")
    file = WatchedFile(link, reader, clock=clock)
    assert file.current() == "one"
    link.unlink()
    link.symlink_to("two")
    assert file.current() == "two"


def test_what_was_true_before_a_file_broke_is_not_used(path: Path, clock: FakeClock) -> None:
    def load(document: Document) -> str:
        reading = ConfigReader(document)
        found = reading.root.string("value")
        reading.finish("it cannot be used", strict=True)
        return found

    path.write_text("value: one")
    _written(path, clock, seconds_ago=60)
    file = watched_yaml(path, load, clock=clock)
    assert file.current() == "one"
    path.write_text("valeu: two")
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            file.current()
    path.write_text("value: three")
    assert file.current() == "three"


def test_a_missing_file_fails_until_it_is_there(tmp_path: Path, reader: Reader, clock: FakeClock) -> None:
    file = WatchedFile(tmp_path / "absent", reader, clock=clock)
    with pytest.raises(FileNotFoundError):
        file.current()
    (tmp_path / "absent").write_text("here")
    assert file.current() == "here"


def test_mistakes_are_noted_where_the_configuration_names_the_file(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "broken").write_text("a: [")
    reading = ConfigReader(parse("path: broken"))
    watched_yaml(tmp_path / "broken", lambda document: document.value, clock=clock).check(reading.root, "path")
    (problem,) = reading.problems
    assert problem.place.path == "path"
    assert "broken" in problem.message
