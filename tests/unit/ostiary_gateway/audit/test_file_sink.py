"""The audit log in a file: private, followed when it is rotated, and shared by workers."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path

import pytest

from ostiary.errors import AuditUnavailable
from ostiary_gateway.audit.file_sink import FileAudit
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.audit.full_disk import files_no_larger_than

A, B, C = '{"a":1}\n', '{"b":2}\n', '{"c":3}\n'


async def test_only_we_may_read_the_file(tmp_path: Path) -> None:
    sink = FileAudit(tmp_path / "audit.log")
    sink.open()
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600
    await sink.close()


async def test_an_existing_file_is_continued(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_text(A)
    sink = FileAudit(tmp_path / "audit.log", fsync=True)
    sink.accept(B)
    await sink.close()
    assert (tmp_path / "audit.log").read_text() == A + B


async def test_a_rotated_file_is_followed_within_a_second(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "audit.log"
    sink = FileAudit(file, clock=clock)
    sink.accept(A)
    await sink.flush()
    file.rename(tmp_path / "audit.log.1")
    clock.advance(1)
    sink.accept(B)
    await sink.flush()
    file.rename(tmp_path / "audit.log.2")
    file.touch(0o600)
    clock.advance(1)
    sink.accept(C)
    await sink.close()
    assert [(tmp_path / name).read_text() for name in ("audit.log.1", "audit.log.2", "audit.log")] == [A, B, C]


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(AuditUnavailable) as caught:
        FileAudit(tmp_path / "nowhere" / "audit.log").open()
    assert "audit.log" in str(caught.value)


async def test_two_workers_never_mix_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sinks = [FileAudit(file, write_bytes=1000), FileAudit(file, write_bytes=1000)]
    for number in range(500):
        for sink in sinks:
            sink.accept(json.dumps({"number": number, "filling": "x" * 50}) + "\n")
    for sink in sinks:
        await sink.close()
    numbers = [json.loads(line)["number"] for line in file.read_text().splitlines()]
    assert sorted(numbers) == sorted([*range(500), *range(500)])


# --- several workers ---


def records(file: Path) -> tuple[list[object], list[str]]:
    """The events, and the lines that are only a part of one."""
    whole, torn = [], []
    for line in file.read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            torn.append(line)
    return whole, torn


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_line_torn_by_one_worker_swallows_no_event_of_another(tmp_path: Path, blocking: bool) -> None:
    file = tmp_path / "audit.log"
    first, second = FileAudit(file, blocking=blocking), FileAudit(file, blocking=blocking)
    for sink in (first, second):
        sink.open()
    first.accept(A)
    await first.flush()
    with files_no_larger_than(len(A) + 3):
        if blocking:
            with pytest.raises(AuditUnavailable):
                first.accept(B)
        else:
            first.accept(B)
            await first.flush()
    assert file.read_text() == A + B[:3]
    second.accept(C)
    await second.flush()
    whole, torn = records(file)
    assert (whole, torn) == ([{"a": 1}, {"c": 3}], [B[:3]])
    for sink in (first, second):
        await sink.close()
    if not blocking:
        assert records(file)[0] == [{"a": 1}, {"c": 3}, {"b": 2}]


async def test_a_worker_that_died_in_the_middle_of_a_line_swallows_nothing(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    file.write_text(A + B[:4])
    sink = FileAudit(file, blocking=True)
    sink.accept(C)
    assert records(file) == ([{"a": 1}, {"c": 3}], [B[:4]])
    await sink.close()


async def test_somebody_who_locks_the_file_for_ever_holds_up_nobody(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileAudit(file, blocking=True)
    with file.open("ab") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        sink.accept(A)
    assert file.read_text() == A
    await sink.close()


async def test_a_file_that_we_may_only_write_to_is_good_enough(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    sink = FileAudit(f"/proc/self/fd/{write_end}", blocking=True)
    sink.accept(A)
    assert os.read(read_end, 100) == A.encode()
    await sink.close()
    os.close(write_end)
    assert os.read(read_end, 1) == b"", "the sink does not keep the pipe open by itself"
    os.close(read_end)
