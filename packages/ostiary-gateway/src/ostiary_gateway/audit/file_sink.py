"""The audit log in a file, which several workers may share and logrotate may move.

audit: {log: {path: audit.log}}
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import AuditUnavailable
from ostiary_gateway.audit.buffered_events import (
    LARGEST_BUFFER,
    LOCK_SECONDS,
    WRITE_BYTES,
    WRITE_SECONDS,
    BufferedEvents,
)
from ostiary_gateway.catalog import Context
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import FilePath, Flag, Holds


@dataclass(frozen=True, slots=True)
class FileAuditSettings:
    path: Annotated[Path, FilePath("a file to append to; its directory must exist", holds=Holds.WRITTEN)]
    fsync: Annotated[bool, Flag("every write waits for the disk")] = False


ROTATION_SECONDS = 1.0

log = logging.getLogger("ostiary_gateway.audit")


class FileAudit(BufferedEvents):
    """Append events to a file that only the gateway's user can read.

    Several workers may share it: they lock it for each write, and first check whether it ends in a torn line, because
    the disk was full or a worker died. Rotation (logrotate) is detected within a second. With *fsync*, every write
    waits for the disk, and so does everything else in this worker.
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

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(FileAuditSettings, fields, context.directory)
        return cls(settings.path, fsync=settings.fsync, clock=context.clock)

    def __str__(self) -> str:
        return str(self._path)

    @property
    def events_file(self) -> str:
        return str(self._path)

    def begin(self, *, blocking: bool) -> None:
        super().begin(blocking=blocking)
        self.open()

    def open(self) -> None:
        """Open the file. Raises `AuditUnavailable`: a gateway that cannot write its audit log does not start."""
        try:
            self._open()
        except OSError as error:
            cause, hint = error.strerror, "create its directory, and let this user write there"
            raise AuditUnavailable("the audit log cannot be opened", cause=cause, where=str(self), hint=hint) from error

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
        count = self._append(data)
        if self._fsync:
            os.fsync(self._file)
        return count

    def _append(self, data: bytes) -> int:
        """Append *data*, on lines of its own. Return how many of its bytes were written."""
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
            # The file is not readable, so only our own writes are known.
            return self._inside_a_line

    def _line_break(self) -> bytes:
        # `_append` checks the end of the file, which another worker may have written.
        return b""

    def _open(self) -> None:
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        try:
            # Also readable, to detect a torn line. Not for a pipe: the writer would then keep it open itself.
            mode = os.O_WRONLY if self._path.is_fifo() else os.O_RDWR
            self._file = os.open(self._path, flags | mode, 0o600)
        except PermissionError:
            self._file = os.open(self._path, flags | os.O_WRONLY, 0o600)
        self._look_again_at = self._clock.monotonic() + ROTATION_SECONDS

    def _follow_rotation(self) -> None:
        self._look_again_at = self._clock.monotonic() + ROTATION_SECONDS
        try:
            current = os.stat(self._path)
        except FileNotFoundError:
            current = None
        ours = os.fstat(self._file)
        if current is None or (current.st_dev, current.st_ino) != (ours.st_dev, ours.st_ino):
            before = self._file
            # Close the old file only after the new one is open: if that fails, keep writing to the old one.
            self._open()
            os.close(before)


def _lock(descriptor: int) -> bool:
    """Lock the file. Other workers hold the lock for microseconds; on timeout the caller writes without it."""
    give_up_at = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < give_up_at:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.0001)
        except OSError:
            # The file system does not support locks.
            return False
    return False
