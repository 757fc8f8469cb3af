"""The lines of audit logs: compressed, rotated, cut short, too long, or from standard input."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.audit import log_files
from ostiary_gateway.audit.log_files import Counts, lines


def read(*paths: Path | str) -> tuple[list[tuple[int, bytes]], Counts]:
    counts = Counts()
    return [line for path in paths for line in lines(path, counts)], counts


def test_a_log_is_read_whether_it_is_compressed_or_not_whatever_it_is_called(tmp_path: Path) -> None:
    plain, packed, misnamed = tmp_path / "audit.log", tmp_path / "audit.log.1.gz", tmp_path / "audit.log.2"
    plain.write_bytes(b"a\n\n  \nb\n")
    packed.write_bytes(gzip.compress(b"c\nd") + gzip.compress(b"\ne\n"))
    misnamed.write_bytes(gzip.compress(b"f"))
    seen, counts = read(plain, packed, misnamed)
    assert seen == [(1, b"a\n"), (4, b"b\n"), (1, b"c\n"), (2, b"d\n"), (3, b"e\n"), (1, b"f")]
    assert counts.lines == 8


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_a_log_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: type[bytes]) -> None:
    (tmp_path / "log").write_bytes(pack(b"a\nb\n"))
    with (tmp_path / "log").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert read("-")[0] == [(1, b"a\n"), (2, b"b\n")]
        # It can still be used by others.
        os.fstat(stdin.fileno())


def test_a_line_that_never_ends_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "LONGEST_LINE", 16)
    log = tmp_path / "log"
    log.write_bytes(b"a\n" + b"x" * 40 + b"\nb\n" + b"y" * 15 + b"\n" + b"z" * 33)
    seen, counts = read(log)
    assert seen == [(1, b"a\n"), (3, b"b\n"), (4, b"y" * 15 + b"\n")]
    assert (counts.unreadable, counts.places) == (2, [f"{log}:2", f"{log}:5"])


@pytest.mark.parametrize("cut", [-1, -9, 14, 5])
def test_a_compressed_log_that_is_damaged_is_an_error(tmp_path: Path, cut: int) -> None:
    """Nobody knows what is missing, so it must not look like a whole one."""
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(b"a\nb\nccccccccccccccc\n")[:cut])
    with pytest.raises(ConfigurationError) as raised:
        read(log)
    assert (raised.value.code, raised.value.where) == ("config-unreadable", str(log))
    log.write_bytes(gzip.compress(b"a\n" * 100)[:-12] + b"\x00" * 12)
    with pytest.raises(ConfigurationError):
        read(log)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path / "gone")
    assert "No such file" in str(raised.value.cause)


def test_progress_is_told_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "LINES_PER_CALL", 3)
    (tmp_path / "log").write_bytes(b"x\n" * 10)
    told = list[int]()
    assert len(list(lines(tmp_path / "log", Counts(on_progress=told.append)))) == 10
    assert told == [3, 6, 9]


def test_only_the_first_places_are_kept() -> None:
    counts = Counts()
    for number in range(1, 100):
        counts.count_unreadable("-", number)
    assert (counts.unreadable, counts.places) == (99, [f"standard input:{number}" for number in range(1, 6)])
