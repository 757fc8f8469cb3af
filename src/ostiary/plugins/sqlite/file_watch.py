"""Calls back when a file is touched, by whichever process of this machine (Linux: inotify).

Called by the SQLite token store. A process that has written a revocation touches the file after the commit; the write
itself would be noticed too early, before other processes can see the commit. Where the system has no inotify, or none
to spare, `FileWatch.open` returns None, and the store polls.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress

# From <sys/inotify.h>; the two flags are those of open(2).
_ATTRIBUTES, _DELETED, _MOVED = 0x004, 0x400, 0x800
_MANY_EVENTS = 64 * 1024


def touch(path: str) -> None:
    """Wake every process that watches the file. Needs no space on the disk."""
    with suppress(OSError):
        os.utime(path)


class FileWatch:
    """Calls *on_change* in the running event loop whenever the file is touched, moved or deleted."""

    def __init__(self, descriptor: int, on_change: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    @classmethod
    def open(cls, path: str, on_change: Callable[[], None]) -> FileWatch | None:
        descriptor = _watch(path)
        return None if descriptor is None else cls(descriptor, on_change)

    def close(self) -> None:
        if self._descriptor >= 0:
            # A loop that is closed has forgotten its readers already.
            with suppress(RuntimeError):
                self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._descriptor, _MANY_EVENTS)
        self._on_change()


def _watch(path: str) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        initialise, add = libc.inotify_init1, libc.inotify_add_watch
    except AttributeError:
        return None
    descriptor: int = initialise(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if add(descriptor, os.fsencode(path), _ATTRIBUTES | _DELETED | _MOVED) < 0:
        os.close(descriptor)
        return None
    return descriptor
