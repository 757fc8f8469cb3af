"""A lock on an open file, which the system lets go of when its holder ends, however that ends.

Called by `cli.signin.files`.
"""

from __future__ import annotations

import os
from typing import Protocol


class FileLock(Protocol):
    def take(self, descriptor: int) -> bool:
        """Lock the open file; False if somebody else has it. Closing the file lets go of it."""


class FlockModule(Protocol):
    """What is needed of `fcntl`."""

    LOCK_EX: int
    LOCK_NB: int

    def flock(self, descriptor: int, operation: int, /) -> None: ...


class LockingModule(Protocol):
    """What is needed of `msvcrt`."""

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
    """The first byte of the file is locked, which need not exist."""

    def __init__(self, msvcrt: LockingModule) -> None:
        self._msvcrt = msvcrt

    def take(self, descriptor: int) -> bool:
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            self._msvcrt.locking(descriptor, self._msvcrt.LK_NBLCK, 1)
        except OSError:
            # Not all that offer this module name the reason.
            return False
        return True


def file_lock() -> FileLock:
    """That of this machine."""
    if os.name == "nt":
        import msvcrt

        return WindowsLock(msvcrt)  # type: ignore[arg-type,unused-ignore]
    import fcntl

    return PosixLock(fcntl)  # type: ignore[arg-type,unused-ignore]
