"""Where audit events go: real files and pipes; what was accepted is stored or counted."""

from __future__ import annotations

import asyncio
import fcntl
import json
import multiprocessing
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

from ostiary.core.counting.counts import MachineCounts
from ostiary.errors import AuditUnavailable
from ostiary.gateway.audit.sinks import FileSink, StdoutSink
from ostiary.testing import FakeClock

A, B, C = '{"a":1}\n', '{"b":2}\n', '{"c":3}\n'


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A full disk, as far as this process can tell: a write is cut short, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# --- the file ---


async def test_events_are_gathered_and_written_together(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileSink(file)
    sink.open()
    sink.accept(A)
    sink.accept(B)
    assert file.read_text() == ""
    await sink.flush()
    assert file.read_text() == A + B
    await sink.close()


async def test_events_are_written_soon_without_being_asked(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileSink(file, write_seconds=0)
    sink.accept(A)
    while not file.exists():
        await asyncio.sleep(0)
    assert file.read_text() == A
    await sink.close()


async def test_many_events_are_written_at_once(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileSink(file, write_bytes=100, write_seconds=3600)
    for _ in range(13):
        sink.accept(A)
    assert file.read_text() == A * 13
    await sink.close()


def test_without_an_event_loop_every_event_is_written_at_once(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    FileSink(file).accept(A)
    assert file.read_text() == A


async def test_only_we_may_read_the_file(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "audit.log")
    sink.open()
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600
    await sink.close()


async def test_an_existing_file_is_continued(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_text(A)
    sink = FileSink(tmp_path / "audit.log", fsync=True)
    sink.accept(B)
    await sink.close()
    assert (tmp_path / "audit.log").read_text() == A + B


async def test_closing_stores_everything_and_can_be_repeated(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "audit.log")
    sink.accept(A)
    await sink.close()
    await sink.close()
    assert (tmp_path / "audit.log").read_text() == A
    sink.accept(B)
    assert sink.dropped == 1


async def test_a_rotated_file_is_followed_within_a_second(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "audit.log"
    sink = FileSink(file, clock=clock)
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


async def test_reopening_writes_what_is_buffered_to_the_old_file(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "audit.log"
    sink = FileSink(file, clock=clock)
    sink.open()
    file.rename(tmp_path / "old")
    sink.accept(A)
    sink.reopen()
    sink.accept(B)
    await sink.close()
    assert (tmp_path / "old").read_text() == A
    assert file.read_text() == B


async def test_the_old_file_is_kept_when_there_is_no_new_one_to_be_had(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    sink = FileSink(directory / "audit.log", clock=clock)
    sink.open()
    directory.rename(tmp_path / "moved")
    sink.reopen()
    sink.accept(A)
    await sink.flush()
    assert (tmp_path / "moved" / "audit.log").read_text() == A
    assert "cannot be reopened" in caplog.text
    await sink.close()


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(AuditUnavailable) as caught:
        FileSink(tmp_path / "nowhere" / "audit.log").open()
    assert "audit.log" in str(caught.value)


async def test_a_full_disk_loses_nothing_that_can_be_kept(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "audit.log"
    file.symlink_to("/dev/full")
    sink = FileSink(file, clock=clock)
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
    sink = FileSink(file, clock=clock, write_bytes=8, largest_buffer=3 * len(A))
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
    sink = FileSink("/dev/full")
    sink.accept(A)
    sink.accept(B)
    await sink.close()
    assert sink.dropped == 2


async def test_a_line_that_was_cut_by_a_full_disk_is_written_again_whole(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileSink(file)
    sink.accept(A)
    sink.accept(B)
    with files_no_larger_than(len(A) + 3):
        await sink.flush()
    sink.accept(C)
    await sink.close()
    assert file.read_text() == A + B[:3] + "\n" + B + C
    assert sink.dropped == 0


async def test_two_workers_never_mix_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sinks = [FileSink(file, write_bytes=1000), FileSink(file, write_bytes=1000)]
    for number in range(500):
        for sink in sinks:
            sink.accept(json.dumps({"number": number, "filling": "x" * 50}) + "\n")
    for sink in sinks:
        await sink.close()
    numbers = [json.loads(line)["number"] for line in file.read_text().splitlines()]
    assert sorted(numbers) == sorted([*range(500), *range(500)])


# --- blocking ---


def test_a_blocking_sink_has_stored_an_event_when_it_returns(tmp_path: Path) -> None:
    """2.7."""
    file = tmp_path / "audit.log"
    sink = FileSink(file, blocking=True, fsync=True)
    sink.accept(A)
    assert file.read_text() == A


def test_a_blocking_sink_refuses_what_it_cannot_store_and_recovers(tmp_path: Path, clock: FakeClock) -> None:
    """2.7."""
    file = tmp_path / "audit.log"
    file.symlink_to("/dev/full")
    sink = FileSink(file, blocking=True, clock=clock)
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
    sink = FileSink(file, blocking=True)
    with files_no_larger_than(3), pytest.raises(AuditUnavailable):
        sink.accept(A)
    sink.accept(B)
    assert file.read_text() == A[:3] + "\n" + B


async def test_a_blocking_sink_that_is_closed_refuses(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "audit.log", blocking=True)
    await sink.close()
    with pytest.raises(AuditUnavailable):
        sink.accept(A)


# --- standard output ---


@pytest.fixture
def pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """A pipe that holds little: the end to read from, and the one to write to."""
    reading, writing = (FileIO(end, mode) for end, mode in zip(os.pipe(), ("r", "w"), strict=True))
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with reading, writing:
        yield reading, writing


async def test_standard_output_gets_the_lines(pipe: tuple[FileIO, FileIO]) -> None:
    reading, writing = pipe
    sink = StdoutSink(writing.fileno())
    sink.accept(A)
    await sink.flush()
    assert reading.read(100) == A.encode()


async def test_standard_output_may_be_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as file:
        sink = StdoutSink(file.fileno())
        sink.accept(A)
        await sink.close()
    assert (tmp_path / "out").read_text() == A


async def test_a_reader_that_does_not_read_holds_up_nobody(
    pipe: tuple[FileIO, FileIO], caplog: pytest.LogCaptureFixture
) -> None:
    """T2."""
    _, writing = pipe
    sink = StdoutSink(writing.fileno(), largest_buffer=100_000)
    line = "x" * 999 + "\n"
    for _ in range(200):
        sink.accept(line)
    assert 90 <= sink.dropped <= 110
    assert caplog.text.count("audit events are dropped") == 1
    sink._lines.clear()
    sink._cancel_timer()


async def test_a_slow_reader_gets_everything_even_lines_longer_than_a_pipe(pipe: tuple[FileIO, FileIO]) -> None:
    reading, writing = pipe
    sink = StdoutSink(writing.fileno())
    lines = [f"{number}{'x' * 9000}\n" for number in range(20)]
    got: list[bytes] = []

    def read_all() -> None:
        while data := reading.read(1000):
            got.append(data)

    thread = threading.Thread(target=read_all)
    for line in lines:
        sink.accept(line)
    thread.start()
    await sink.close()
    writing.close()
    thread.join()
    assert b"".join(got).decode() == "".join(lines)
    assert sink.dropped == 0


async def test_a_reader_that_went_away_ends_nothing_but_the_record(
    pipe: tuple[FileIO, FileIO], caplog: pytest.LogCaptureFixture
) -> None:
    reading, writing = pipe
    reading.close()
    sink = StdoutSink(writing.fileno())
    sink.accept(A)
    await sink.close()
    assert sink.dropped == 1
    assert "cannot be stored" in caplog.text


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
    first, second = FileSink(file, blocking=blocking), FileSink(file, blocking=blocking)
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
    sink = FileSink(file, blocking=True)
    sink.accept(C)
    assert records(file) == ([{"a": 1}, {"c": 3}], [B[:4]])
    await sink.close()


async def test_somebody_who_locks_the_file_for_ever_holds_up_nobody(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    sink = FileSink(file, blocking=True)
    with file.open("ab") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        sink.accept(A)
    assert file.read_text() == A
    await sink.close()


async def test_a_file_that_we_may_only_write_to_is_good_enough(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    sink = FileSink(f"/proc/self/fd/{write_end}", blocking=True)
    sink.accept(A)
    assert os.read(read_end, 100) == A.encode()
    await sink.close()
    os.close(write_end)
    assert os.read(read_end, 1) == b"", "the sink does not keep the pipe open by itself"
    os.close(read_end)


def write_long_lines(memory: int, pipe: int, name: str, blocking: bool, done: int) -> None:
    """A worker whose events are longer than a pipe takes in one piece."""

    async def work() -> None:
        sink = StdoutSink(pipe, blocking=blocking, write_seconds=0.001, guard=MachineCounts(memory).line_guard())
        for number in range(60):
            sink.accept(json.dumps({"name": name, "number": number, "text": "x" * (number * 977 % 20_000)}) + "\n")
            await asyncio.sleep(0)
        while sink._lines:
            await asyncio.sleep(0.001)
        await sink.close()

    asyncio.run(work())
    os.write(done, b".")


@pytest.mark.parametrize("blocking", [True, False])
def test_long_lines_of_several_workers_do_not_run_into_each_other_in_a_pipe(blocking: bool) -> None:
    fork = multiprocessing.get_context("fork")
    memory, (read_end, write_end), (done, finished) = MachineCounts.create(), os.pipe(), os.pipe()
    names = ["a", "b", "c"]
    workers = [
        fork.Process(target=write_long_lines, args=(memory, write_end, name, blocking, finished)) for name in names
    ]
    for worker in workers:
        worker.start()
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        events = [json.loads(line) for line in pipe]
    for worker in workers:
        worker.join(30)
    assert os.read(done, 10) == b"..."
    for name in names:
        assert [event["number"] for event in events if event["name"] == name] == list(range(60))
    for descriptor in (memory, done, finished):
        os.close(descriptor)


async def test_after_a_worker_died_in_the_middle_of_a_line_the_next_begins_a_new_one() -> None:
    memory, (read_end, write_end) = MachineCounts.create(), os.pipe()
    dead = MachineCounts(memory).line_guard()
    dead.try_enter()
    dead.note(torn=True)
    os.write(write_end, B[:4].encode())
    dead.leave()
    sink = StdoutSink(write_end, blocking=True, guard=MachineCounts(memory).line_guard())
    sink.accept(C)
    sink.accept(A)
    assert os.read(read_end, 100).decode() == B[:4] + "\n" + C + A
    await sink.close()
    for descriptor in (memory, read_end, write_end):
        os.close(descriptor)
