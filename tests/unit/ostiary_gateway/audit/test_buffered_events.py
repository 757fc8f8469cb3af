"""What the file and standard output share: events are written together, kept while they cannot be, or counted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ostiary.errors import AuditUnavailable
from ostiary_gateway.audit.file_sink import FileAudit
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.audit.full_disk import files_no_larger_than

A, B, C = '{"a":1}\n', '{"b":2}\n', '{"c":3}\n'


async def test_events_are_gathered_and_written_together(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileAudit(file)
    sink.open()
    sink.accept(A)
    sink.accept(B)
    assert file.read_text() == ""
    await sink.flush()
    assert file.read_text() == A + B
    await sink.close()


async def test_events_are_written_soon_without_being_asked(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileAudit(file, write_seconds=0)
    sink.accept(A)
    while not file.exists():
        await asyncio.sleep(0)
    assert file.read_text() == A
    await sink.close()


async def test_many_events_are_written_at_once(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileAudit(file, write_bytes=100, write_seconds=3600)
    for _ in range(13):
        sink.accept(A)
    assert file.read_text() == A * 13
    await sink.close()


def test_without_an_event_loop_every_event_is_written_at_once(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    FileAudit(file).accept(A)
    assert file.read_text() == A


async def test_closing_stores_everything_and_can_be_repeated(tmp_path: Path) -> None:
    sink = FileAudit(tmp_path / "audit.log")
    sink.accept(A)
    await sink.close()
    await sink.close()
    assert (tmp_path / "audit.log").read_text() == A
    sink.accept(B)
    assert sink.dropped == 1


async def test_a_full_disk_loses_nothing_that_can_be_kept(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "audit.log"
    file.symlink_to("/dev/full")
    sink = FileAudit(file, clock=clock)
    for line in (A, B):
        sink.accept(line)
        await sink.flush()
    assert caplog.text.count("cannot be stored") == 1, "loud, and once"
    file.unlink()
    clock.advance(1)
    sink.accept(C)
    await sink.flush()
    assert file.read_text() == A + B + C
    assert sink.dropped == 0
    assert "stored again" in caplog.text
    await sink.close()


async def test_what_does_not_fit_while_the_disk_is_full_is_dropped_and_counted(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """T2."""
    file = tmp_path / "audit.log"
    file.symlink_to("/dev/full")
    sink = FileAudit(file, clock=clock, write_bytes=8, largest_buffer=3 * len(A))
    for _ in range(10):
        sink.accept(A)
    assert sink.dropped == 7
    assert "audit events are dropped" in caplog.text
    file.unlink()
    clock.advance(1)
    await sink.close()
    assert file.read_text() == A * 3
    assert sink.dropped == 7


async def test_what_is_left_at_the_end_of_a_full_disk_is_counted() -> None:
    sink = FileAudit("/dev/full")
    sink.accept(A)
    sink.accept(B)
    await sink.close()
    assert sink.dropped == 2


async def test_a_line_that_was_cut_by_a_full_disk_is_written_again_whole(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileAudit(file)
    sink.accept(A)
    sink.accept(B)
    with files_no_larger_than(len(A) + 3):
        await sink.flush()
    sink.accept(C)
    await sink.close()
    assert file.read_text() == A + B[:3] + "\n" + B + C
    assert sink.dropped == 0


def test_a_blocking_sink_has_stored_an_event_when_it_returns(tmp_path: Path) -> None:
    """2.7."""
    file = tmp_path / "audit.log"
    sink = FileAudit(file, blocking=True, fsync=True)
    sink.accept(A)
    assert file.read_text() == A


def test_a_blocking_sink_refuses_what_it_cannot_store_and_recovers(tmp_path: Path, clock: FakeClock) -> None:
    """2.7."""
    file = tmp_path / "audit.log"
    file.symlink_to("/dev/full")
    sink = FileAudit(file, blocking=True, clock=clock)
    for _ in range(2):
        with pytest.raises(AuditUnavailable) as caught:
            sink.accept(A)
        assert caught.value.cause == "No space left on device"
    file.unlink()
    clock.advance(1)
    sink.accept(B)
    assert file.read_text() == B
    assert sink.dropped == 0, "it was refused, not accepted and lost"


def test_half_an_event_counts_as_none(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileAudit(file, blocking=True)
    with files_no_larger_than(3), pytest.raises(AuditUnavailable):
        sink.accept(A)
    sink.accept(B)
    assert file.read_text() == A[:3] + "\n" + B


async def test_a_blocking_sink_that_is_closed_refuses(tmp_path: Path) -> None:
    sink = FileAudit(tmp_path / "audit.log", blocking=True)
    await sink.close()
    with pytest.raises(AuditUnavailable):
        sink.accept(A)
