"""The audit log on standard output, which several workers may share.

audit: {stdout: true}
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import stat
import time
from typing import Self

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.audit.buffered_events import LARGEST_BUFFER, LOCK_SECONDS, WRITE_SECONDS, BufferedEvents
from ostiary_gateway.catalog import Context
from ostiary_gateway.limits.counts import LineGuard, MachineCounts

BLOCKING_SECONDS = 1.0
# POSIX: writes of up to PIPE_BUF bytes to a pipe are atomic, so lines of two workers do not mix.
PIPE_BYTES = select.PIPE_BUF
_PATIENCE_MS = 1000


class StdoutAudit(BufferedEvents):
    """Write events to standard output, where the container runtime reads them.

    A slow reader never delays a request, unless the sink is *blocking*. Several workers share one output: with *guard*,
    a worker that has written part of a line finishes it before others write.
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

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        # The guard is in the memory that the workers share for counters.
        counts = context.counts
        return cls(guard=counts.line_guard() if isinstance(counts, MachineCounts) else None)

    def __str__(self) -> str:
        return "standard output"

    async def flush(self) -> None:
        self._write_buffer()
        # A slow reader gets the rest, as long as it reads at all.
        while self._lines and not self._failing and await asyncio.to_thread(self._can_write):
            self._write_buffer()

    async def close(self) -> None:
        await self.flush()
        await super().close()

    def _can_write(self) -> bool:
        return bool(self._poll.poll(_PATIENCE_MS))

    def _keep(self, rest: bytes, written: bytes) -> None:
        # Continue where the pipe was full. A line longer than the pipe's buffer would otherwise never get through.
        self._lines, self._size = rest.decode("ascii").splitlines(keepends=True), len(rest)

    def _write(self, data: bytes) -> int:
        if self._guard is None:
            return self._write_pieces(data)
        if not self._enter(self._guard):
            return 0
        count = 0
        try:
            count = self._write_after_tear(self._guard, data)
        finally:
            self._midway = not data[:count].endswith(b"\n") if count else self._midway
            if self.blocking or self._regular:
                # The rest of the line is not buffered: the next writer starts a new line.
                self._midway = False
            else:
                self._guard.note(torn=self._midway)
            if not self._midway:
                self._guard.leave()
        return count

    def _enter(self, guard: LineGuard) -> bool:
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
        count = max(0, self._write_pieces(torn + data) - len(torn))
        guard.note(torn=bool(count) and not data[:count].endswith(b"\n"))
        return count

    def _write_pieces(self, data: bytes) -> int:
        if self.blocking or self._regular:
            return os.write(self._descriptor, data)
        count = 0
        while count < len(data) and self._poll.poll(0):
            count += os.write(self._descriptor, data[count : _end_of_piece(data, count)])
        return count


def _end_of_piece(data: bytes, start: int) -> int:
    """Return the end of the whole lines that fit into one atomic write. A longer line is split."""
    if len(data) - start <= PIPE_BYTES:
        return len(data)
    line_break = data.rfind(b"\n", start, start + PIPE_BYTES)
    return start + PIPE_BYTES if line_break < 0 else line_break + 1
