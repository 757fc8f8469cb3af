"""Where audit events go: a file, standard output, or the webhook of audit.webhook.

    accept (at once)  ->  a buffer  ->  one write for many events  ->  kept until it succeeds, or counted as dropped

Called by the auditor with finished lines. A sink either stores what it accepted or counts it: an event is never
lost in silence. A *blocking* sink has stored an event when `accept` returns, and raises if it cannot; the others
never raise and never hold up a request.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import select
import stat
import time
from pathlib import Path
from typing import Protocol

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.counting.counts import LineGuard
from ostiary.errors import AuditUnavailable
from ostiary.gateway.audit.webhook import WebhookSink

__all__ = ["FileSink", "Sink", "StdoutSink", "WebhookSink"]

WRITE_SECONDS = 0.2
WRITE_BYTES = 64 * 1024
# What is kept while nothing can be written. More than this is dropped, and counted.
LARGEST_BUFFER = 16 * 1024 * 1024
ROTATION_SECONDS = 1.0
LOCK_SECONDS = 0.05
BLOCKING_SECONDS = 1.0
# What the system writes to a pipe in one piece, so that the lines of two workers do not run into each other.
PIPE_BYTES = select.PIPE_BUF
_PATIENCE_MS = 1000

log = logging.getLogger("ostiary.gateway.audit")


class Sink(Protocol):
    """Called from the event loop only. `dropped` counts the accepted events that could not be stored."""

    dropped: int

    def accept(self, line: str) -> None:
        """Take one event, ending in a line break. A blocking sink raises `AuditUnavailable`, the others do not."""

    async def flush(self) -> None:
        """Try to store all that was accepted."""

    async def close(self) -> None:
        """Store what was accepted, or count it as dropped. Harmless when repeated."""


class _Descriptor:
    """What a file and standard output have in common: lines are gathered, and written together."""

    def __init__(
        self,
        *,
        blocking: bool = False,
        write_seconds: float = WRITE_SECONDS,
        write_bytes: int = WRITE_BYTES,
        largest_buffer: int = LARGEST_BUFFER,
    ) -> None:
        self.blocking = blocking
        self.dropped = 0
        self._write_seconds, self._write_bytes, self._largest_buffer = write_seconds, write_bytes, largest_buffer
        self._lines: list[str] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failing = ""
        # Something is left over from the last write. Only the timer tries again, not every new event.
        self._stalled = False
        self._lost = 0
        # Half a line stands at the end of the file: the disk was full in the middle of a write.
        self._inside_a_line = False
        self._closed = False

    def accept(self, line: str) -> None:
        if self.blocking:
            self._store(line)
            return
        self._lines.append(line)
        self._size = size = self._size + len(line)
        if self._timer is None or size >= self._write_bytes:
            self._hurry(size)

    async def flush(self) -> None:
        self._write_buffer()

    async def close(self) -> None:
        self._write_buffer()
        self._closed = True
        self._drop(len(self._lines))
        self._cancel_timer()

    # --- many events, later ---

    def _hurry(self, size: int) -> None:
        """Write now if there is much to write, else soon; while nothing can be written, only keep what fits."""
        if self._closed:
            self._drop(1)
        elif size > self._largest_buffer:
            self._drop_newest()
        elif size >= self._write_bytes and not self._stalled:
            self._write_buffer()
        self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None and self._lines:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                # Nobody would call us again.
                self._write_buffer()
            else:
                self._timer = loop.call_later(self._write_seconds, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._write_buffer()
        self._start_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write_buffer(self) -> None:
        if not self._lines:
            return
        data = self._line_break() + "".join(self._lines).encode("ascii")
        try:
            written = self._write(data)
        except OSError as error:
            self._failed(error)
            return
        self._stalled = written < len(data)
        if self._stalled:
            self._keep(data[written:], data[:written])
        else:
            self._lines, self._size, self._inside_a_line = [], 0, False
            self._recovered()

    def _keep(self, rest: bytes, written: bytes) -> None:
        """Keep what was not written. A line that was cut is kept whole: twice is better than half."""
        self._inside_a_line = bool(written) and not written.endswith(b"\n")
        if self._inside_a_line:
            rest = written[written.rfind(b"\n") + 1 :] + rest
        self._lines = rest.decode("ascii").splitlines(keepends=True)
        self._size = len(rest)

    def _line_break(self) -> bytes:
        return b"\n" if self._inside_a_line else b""

    def _drop(self, count: int) -> None:
        if count:
            self._count_lost(count)
            self._lines, self._size = [], 0

    def _drop_newest(self) -> None:
        self._size -= len(self._lines.pop())
        self._count_lost(1)

    def _count_lost(self, count: int) -> None:
        if not self._lost:
            log.error("audit events are dropped", extra={"sink": str(self), "cause": self._failing or "too slow"})
        self.dropped += count
        self._lost += count

    def _failed(self, error: OSError) -> None:
        why = error.strerror or type(error).__name__
        if why != self._failing:
            log.error("audit events cannot be stored; they are kept in memory", extra={"sink": str(self), "cause": why})
        self._failing, self._stalled = why, True

    def _recovered(self) -> None:
        if self._failing or self._lost:
            log.warning("audit events are stored again", extra={"sink": str(self), "dropped": self._lost})
        self._failing, self._lost = "", 0

    # --- one event, now ---

    def _store(self, line: str) -> None:
        data = self._line_break() + line.encode("ascii")
        try:
            if self._closed:
                raise BrokenPipeError
            written = self._write(data)
        except OSError as error:
            self._failed(error)
            raise self._unavailable(error.strerror) from error
        # The break that ends an earlier half is part of what was written.
        self._inside_a_line = not data[:written].endswith(b"\n") if written else self._inside_a_line
        if written < len(data):
            raise self._unavailable("only a part of the event could be written")
        self._recovered()

    def _unavailable(self, cause: str | None) -> AuditUnavailable:
        hint = "free disk space or correct the permissions; requests are refused until then, because audit is blocking"
        return AuditUnavailable("an audit event cannot be stored", cause=cause, where=str(self), hint=hint)

    def _write(self, data: bytes) -> int:
        """Write from the beginning of *data*, and say how much; raises `OSError` when nothing can be written."""
        raise NotImplementedError


class FileSink(_Descriptor):
    """Appends to a file that only we may read. Several workers may share it: one writes at a time, and each looks
    first whether the one before was cut off in the middle of a line, on a full disk or by its end.

    A file that was moved away (logrotate) is noticed within a second, or at once by `reopen`, which is what a
    SIGHUP shall call. With *fsync*, every write waits for the disk, and so does everything else in this worker.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        blocking: bool = False,
        fsync: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        write_seconds: float = WRITE_SECONDS,
        write_bytes: int = WRITE_BYTES,
        largest_buffer: int = LARGEST_BUFFER,
    ) -> None:
        super().__init__(
            blocking=blocking, write_seconds=write_seconds, write_bytes=write_bytes, largest_buffer=largest_buffer
        )
        self._path = Path(path)
        self._fsync = fsync
        self._clock = clock
        self._file = -1
        self._look_again_at = 0.0

    def __str__(self) -> str:
        return str(self._path)

    def open(self) -> None:
        """Raises `AuditUnavailable`: a gateway that shall write a record and cannot does not start."""
        try:
            self._open()
        except OSError as error:
            cause, hint = error.strerror, "create its directory, and let this user write there"
            raise AuditUnavailable("the audit log cannot be opened", cause=cause, where=str(self), hint=hint) from error

    def reopen(self) -> None:
        """Write to the file that has the name now. If that is not possible, the old one is kept."""
        self._write_buffer()
        before, self._file = self._file, -1
        try:
            self._open()
        except OSError as error:
            self._file = before
            log.error("the audit log cannot be reopened", extra={"sink": str(self), "cause": error.strerror})
        else:
            if before >= 0:
                os.close(before)

    async def close(self) -> None:
        await super().close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, data: bytes) -> int:
        if self._file < 0:
            self._open()
        elif self._clock.monotonic() >= self._look_again_at:
            self._follow_rotation()
        written = self._append(data)
        if self._fsync:
            os.fsync(self._file)
        return written

    def _append(self, data: bytes) -> int:
        """How much of *data* was written, on lines of its own."""
        locked = _lock(self._file)
        try:
            torn = b"\n" if self._ends_inside_a_line() else b""
            return max(0, os.write(self._file, torn + data) - len(torn))
        finally:
            if locked:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _ends_inside_a_line(self) -> bool:
        try:
            size = os.fstat(self._file).st_size
            return size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        except OSError:
            # It cannot be read; then we know of our own writes only.
            return self._inside_a_line

    def _line_break(self) -> bytes:
        # The file itself says how it ends, whoever wrote to it last.
        return b""

    def _open(self) -> None:
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        try:
            # Read, too: a torn line is seen in the file. A pipe must not be kept open by its own writer.
            mode = os.O_WRONLY if self._path.is_fifo() else os.O_RDWR
            self._file = os.open(self._path, flags | mode, 0o600)
        except PermissionError:
            self._file = os.open(self._path, flags | os.O_WRONLY, 0o600)
        self._look_again_at = self._clock.monotonic() + ROTATION_SECONDS

    def _follow_rotation(self) -> None:
        self._look_again_at = self._clock.monotonic() + ROTATION_SECONDS
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            found = None
        ours = os.fstat(self._file)
        if found is None or (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino):
            before = self._file
            # Not before the new one is open: if there is none to be had, the old one is better than nothing.
            self._open()
            os.close(before)


class StdoutSink(_Descriptor):
    """Writes to standard output, where a container's runtime reads it.

    A reader that does not keep up never holds up a request, unless the sink is *blocking*. Several workers have the
    same output: with their *guard*, one that is in the middle of a line finishes it before others write.
    """

    def __init__(
        self,
        descriptor: int = 1,
        *,
        blocking: bool = False,
        write_seconds: float = WRITE_SECONDS,
        largest_buffer: int = LARGEST_BUFFER,
        guard: LineGuard | None = None,
    ) -> None:
        super().__init__(blocking=blocking, write_seconds=write_seconds, largest_buffer=largest_buffer)
        self._descriptor = descriptor
        self._guard = guard
        self._midway = False
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._regular = stat.S_ISREG(os.fstat(descriptor).st_mode)

    def __str__(self) -> str:
        return "standard output"

    async def flush(self) -> None:
        self._write_buffer()
        # A reader that is merely slow gets the rest, as long as it reads at all.
        while self._lines and not self._failing and await asyncio.to_thread(self._can_write):
            self._write_buffer()

    async def close(self) -> None:
        await self.flush()
        await super().close()

    def _can_write(self) -> bool:
        return bool(self._poll.poll(_PATIENCE_MS))

    def _keep(self, rest: bytes, written: bytes) -> None:
        # Go on where the pipe was full. A line longer than a pipe takes at once would otherwise never get through.
        self._lines, self._size = rest.decode("ascii").splitlines(keepends=True), len(rest)

    def _write(self, data: bytes) -> int:
        if self._guard is None:
            return self._write_pieces(data)
        if not self._entered(self._guard):
            return 0
        done = 0
        try:
            done = self._write_after_tear(self._guard, data)
        finally:
            self._midway = not data[:done].endswith(b"\n") if done else self._midway
            if self.blocking or self._regular:
                # The rest of the line is not kept: whoever writes next begins a new one.
                self._midway = False
            else:
                self._guard.note(torn=self._midway)
            if not self._midway:
                self._guard.leave()
        return done

    def _entered(self, guard: LineGuard) -> bool:
        give_up_at = time.monotonic() + (BLOCKING_SECONDS if self.blocking else LOCK_SECONDS / 10)
        while not guard.try_enter():
            if time.monotonic() > give_up_at:
                if self.blocking:
                    raise BlockingIOError(errno.EAGAIN, "another worker holds the lock on the audit log for too long")
                return False
            time.sleep(0.0001)
        return True

    def _write_after_tear(self, guard: LineGuard, data: bytes) -> int:
        torn = b"\n" if guard.torn and not self._midway else b""
        guard.note(torn=True)
        written = max(0, self._write_pieces(torn + data) - len(torn))
        guard.note(torn=bool(written) and not data[:written].endswith(b"\n"))
        return written

    def _write_pieces(self, data: bytes) -> int:
        if self.blocking or self._regular:
            return os.write(self._descriptor, data)
        done = 0
        while done < len(data) and self._poll.poll(0):
            done += os.write(self._descriptor, data[done : _end_of_piece(data, done)])
        return done


def _lock(descriptor: int) -> bool:
    """Keep the other workers from writing meanwhile. They take microseconds; a stranger who holds it does not count."""
    give_up_at = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < give_up_at:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.0001)
        except OSError:
            # A file system without locks.
            return False
    return False


def _end_of_piece(data: bytes, start: int) -> int:
    """As many whole lines as a pipe takes in one piece; a line that is longer than that goes in several."""
    if len(data) - start <= PIPE_BYTES:
        return len(data)
    line_break = data.rfind(b"\n", start, start + PIPE_BYTES)
    return start + PIPE_BYTES if line_break < 0 else line_break + 1
