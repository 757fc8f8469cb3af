"""A lock on an open file, which the system releases when the process ends for any reason."""

from __future__ import annotations

import os
from typing import Protocol


class FileLock(Protocol):
    def take(self, descriptor: int) -> bool:
        """Lock the open file; False if another process has locked it. Closing the file releases the lock."""


class FlockModule(Protocol):
    """The part of `fcntl` that is needed here."""

    LOCK_EX: int
    LOCK_NB: int

    def flock(self, descriptor: int, operation: int, /) -> None: ...


class LockingModule(Protocol):
    """The part of `msvcrt` that is needed here."""

    LK_NBLCK: int

    def locking(self, descriptor: int, mode: int, size: int, /) -> None: ...


class PosixLock:
    def __init__(self, fcntl: FlockModule) -> None:
        self._fcntl = fcntl

    def take(self, descriptor: int) -> bool:
        try:
            self._fcntl.flock(descriptor, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class WindowsLock:
    """Locks the first byte of the file, which need not exist."""

    def __init__(self, msvcrt: LockingModule) -> None:
        self._msvcrt = msvcrt

    def take(self, descriptor: int) -> bool:
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            self._msvcrt.locking(descriptor, self._msvcrt.LK_NBLCK, 1)
        except OSError:
            # Not all modules of this name report the reason.
            return False
        return True


def file_lock() -> FileLock:
    """Return the lock implementation for this system."""
    if os.name == "nt":
        import msvcrt

        return WindowsLock(msvcrt)  # type: ignore[arg-type,unused-ignore]
    import fcntl

    return PosixLock(fcntl)  # type: ignore[arg-type,unused-ignore]
