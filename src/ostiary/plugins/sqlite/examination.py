"""Whether a SQLite token store is whole, and which other process has its file open.

Called by the SQLite token store for ``ostiary store check`` and ``store migrate``.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import sys
from contextlib import suppress
from pathlib import Path

from ostiary.interfaces.store_abilities.examining import StoreReport
from ostiary.plugins.sqlite import database_file

MOST_PROBLEMS = 10
# Where each process that has a file in WAL mode open holds a lock for reading: UNIX_SHM_DMS in SQLite's os_unix.c.
_IN_USE_BYTE = 128
# `struct flock` of Linux on 64 bits: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi4x")

_LOST = {
    "tokens have no session": "SELECT count(*) FROM tokens WHERE session NOT IN (SELECT number FROM sessions)",
    "groups have no session": "SELECT count(*) FROM session_groups WHERE session NOT IN (SELECT number FROM sessions)",
    "revocations have numbers that are not given out yet": (
        "SELECT count(*) FROM revocations WHERE sequence > (SELECT seq FROM sqlite_sequence WHERE name = 'revocations')"
    ),
}


def examine(db: sqlite3.Connection, path: str) -> StoreReport:
    checks = [row[0] for row in db.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})")]
    problems = [] if checks == ["ok"] else [f"the file is damaged: {text}" for text in checks]
    if not problems:
        for what, query in _LOST.items():
            (count,) = db.execute(query).fetchone()
            if count:
                problems.append(f"{count} {what}")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    facts = (
        ("schema", f"version {version} of {database_file.VERSION}"),
        ("file", f"{path}, {_size(path)} bytes, mode {os.stat(path).st_mode & 0o777:o}"),
        ("engine", f"SQLite {sqlite3.sqlite_version}"),
    )
    return StoreReport(facts, tuple(problems))


def _size(path: str) -> int:
    return sum(file.stat().st_size for file in (Path(path), Path(f"{path}-wal")) if file.exists())


class OtherProcesses:
    """Knows whether another process has the file open. Close it after every connection of this process."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-shm"
        self._descriptor: int | None = None

    def describe(self) -> tuple[str, ...]:
        """One of them, if there are any: the system names no more than one."""
        if sys.platform != "linux" or struct.calcsize("P") != 8:
            return ()
        if self._descriptor is None:
            # Kept open: closing it would end the locks that SQLite holds on it for this process.
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _IN_USE_BYTE, 1, 0)
        kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, question))
        if kind == fcntl.F_UNLCK:
            return ()
        return (_process_name(pid),)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _process_name(pid: int) -> str:
    # A process of another container has no number here.
    if pid <= 0:
        return "a process outside of this container"
    # The name alone: arguments may hold what is nobody's business.
    with suppress(OSError):
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    return f"process {pid}"
