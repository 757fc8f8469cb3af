"""The audit log on standard output: no reader holds up a request, and lines of workers stay whole."""

from __future__ import annotations

import asyncio
import fcntl
import json
import multiprocessing
import os
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from ostiary_gateway.audit.stdout_sink import StdoutAudit
from ostiary_gateway.limits.counts import MachineCounts

A, B, C = '{"a":1}\n', '{"b":2}\n', '{"c":3}\n'


@pytest.fixture
def pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """A pipe that holds little: the end to read from, and the one to write to."""
    reading, writing = (FileIO(end, mode) for end, mode in zip(os.pipe(), ("r", "w"), strict=True))
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with reading, writing:
        yield reading, writing


async def test_standard_output_gets_the_lines(pipe: tuple[FileIO, FileIO]) -> None:
    reading, writing = pipe
    sink = StdoutAudit(writing.fileno())
    sink.accept(A)
    await sink.flush()
    assert reading.read(100) == A.encode()


async def test_standard_output_may_be_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as file:
        sink = StdoutAudit(file.fileno())
        sink.accept(A)
        await sink.close()
    assert (tmp_path / "out").read_text() == A


async def test_a_reader_that_does_not_read_holds_up_nobody(
    pipe: tuple[FileIO, FileIO], caplog: pytest.LogCaptureFixture
) -> None:
    """T2."""
    _, writing = pipe
    sink = StdoutAudit(writing.fileno(), largest_buffer=100_000)
    line = "x" * 999 + "\n"
    for _ in range(200):
        sink.accept(line)
    assert 90 <= sink.dropped <= 110
    assert caplog.text.count("audit events are dropped") == 1
    sink._lines.clear()
    sink._cancel_timer()


async def test_a_slow_reader_gets_everything_even_lines_longer_than_a_pipe(pipe: tuple[FileIO, FileIO]) -> None:
    reading, writing = pipe
    sink = StdoutAudit(writing.fileno())
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
    sink = StdoutAudit(writing.fileno())
    sink.accept(A)
    await sink.close()
    assert sink.dropped == 1
    assert "cannot be stored" in caplog.text


def write_long_lines(memory: int, pipe: int, name: str, blocking: bool, done: int) -> None:
    """A worker whose events are longer than a pipe takes in one piece."""

    async def work() -> None:
        sink = StdoutAudit(pipe, blocking=blocking, write_seconds=0.001, guard=MachineCounts(memory).line_guard())
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
    sink = StdoutAudit(write_end, blocking=True, guard=MachineCounts(memory).line_guard())
    sink.accept(C)
    sink.accept(A)
    assert os.read(read_end, 100).decode() == B[:4] + "\n" + C + A
    await sink.close()
    for descriptor in (memory, read_end, write_end):
        os.close(descriptor)
