"""Base class of the audit providers for files and standard output: many events share one write.

accept (synchronous)  ->  a buffer  ->  one write for many events  ->  retried until it succeeds, or dropped
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ostiary.errors import AuditUnavailable

WRITE_SECONDS = 0.2
WRITE_BYTES = 64 * 1024
# Bytes buffered while writes fail. Further events are dropped and counted.
LARGEST_BUFFER = 16 * 1024 * 1024
# How long to wait for the lock of another worker.
LOCK_SECONDS = 0.05

log = logging.getLogger("ostiary_gateway.audit")


class BufferedEvents:
    """Buffer lines and write them together. Subclasses implement `_write`.

    Implements `ostiary_gateway.interfaces.audit.AuditProvider`, `Begins` and `RecordsAtOnce`.
    """

    # The number of accepted events that could not be stored.
    dropped: int = 0

    def __init__(
        self,
        *,
        blocking: bool = False,
        write_seconds: float = WRITE_SECONDS,
        write_bytes: int = WRITE_BYTES,
        largest_buffer: int = LARGEST_BUFFER,
    ) -> None:
        self.blocking = blocking
        self._write_seconds, self._write_bytes, self._largest_buffer = write_seconds, write_bytes, largest_buffer
        self._lines: list[str] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failing = ""
        # The last write was incomplete. Only the timer retries it, not every new event.
        self._stalled = False
        self._lost = 0
        # The file ends in an incomplete line: the disk was full during a write.
        self._inside_a_line = False
        self._closed = False

    def begin(self, *, blocking: bool) -> None:
        self.blocking = blocking

    async def store(self, events: Sequence[str]) -> None:
        for line in events:
            self._store(line)

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

    # --- non-blocking: many events per write ---

    def _hurry(self, size: int) -> None:
        """Write now if the buffer is large, otherwise soon. While writes fail, drop what exceeds the buffer."""
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
                # Without an event loop there is no timer.
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
            count = self._write(data)
        except OSError as error:
            self._record_failure(error)
            return
        self._stalled = count < len(data)
        if self._stalled:
            self._keep(data[count:], data[:count])
        else:
            self._lines, self._size, self._inside_a_line = [], 0, False
            self._record_recovery()

    def _keep(self, rest: bytes, written: bytes) -> None:
        """Keep what was not written. A torn line is kept whole: writing it twice is better than losing half of it."""
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

    def _record_failure(self, error: OSError) -> None:
        why = error.strerror or type(error).__name__
        if why != self._failing:
            log.error("audit events cannot be stored; they are kept in memory", extra={"sink": str(self), "cause": why})
        self._failing, self._stalled = why, True

    def _record_recovery(self) -> None:
        if self._failing or self._lost:
            log.warning("audit events are stored again", extra={"sink": str(self), "dropped": self._lost})
        self._failing, self._lost = "", 0

    # --- blocking: one event per write ---

    def _store(self, line: str) -> None:
        data = self._line_break() + line.encode("ascii")
        try:
            if self._closed:
                raise BrokenPipeError
            count = self._write(data)
        except OSError as error:
            self._record_failure(error)
            raise self._unavailable(error.strerror) from error
        # The data begins with the line break that ends an earlier torn line.
        self._inside_a_line = not data[:count].endswith(b"\n") if count else self._inside_a_line
        if count < len(data):
            raise self._unavailable("only a part of the event could be written")
        self._record_recovery()

    def _unavailable(self, cause: str | None) -> AuditUnavailable:
        hint = "free disk space or correct the permissions; requests are refused until then, because audit is blocking"
        return AuditUnavailable("an audit event cannot be stored", cause=cause, where=str(self), hint=hint)

    def _write(self, data: bytes) -> int:
        """Write from the beginning of *data* and return how many bytes were written. Raises `OSError` if none were."""
        raise NotImplementedError
