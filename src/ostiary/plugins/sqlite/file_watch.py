"""Calls back when a file is touched, by whichever process of this machine (Linux: inotify).

Called by the SQLite token store. A process that has written a revocation touches the file after the commit; the write
itself would be noticed too early, before other processes can see the commit. Where the system has no inotify, or none
to spare, `FileWatch.open` returns None, and the store polls.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from ostiary.core.platform.inotify import ATTRIBUTES, SELF_DELETED, SELF_MOVED, Inotify


def touch(path: str) -> None:
    """Wake every process that watches the file. Needs no space on the disk."""
    with suppress(OSError):
        os.utime(path)


class FileWatch:
    """Calls *on_change* in the running event loop whenever the file is touched, moved or deleted."""

    def __init__(self, inotify: Inotify, on_change: Callable[[], None]) -> None:
        self._inotify: Inotify | None = inotify
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(inotify.fileno(), self._read)

    @classmethod
    def open(cls, path: str, on_change: Callable[[], None]) -> FileWatch | None:
        inotify = _watch(path)
        return None if inotify is None else cls(inotify, on_change)

    def close(self) -> None:
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            # A loop that is closed has forgotten its readers already.
            with suppress(RuntimeError):
                self._loop.remove_reader(inotify.fileno())
            inotify.close()

    def _read(self) -> None:
        if self._inotify is not None:
            list(self._inotify.events())
            self._on_change()


def _watch(path: str) -> Inotify | None:
    inotify = Inotify.open()
    if inotify is not None and not inotify.watch(path, ATTRIBUTES | SELF_DELETED | SELF_MOVED):
        inotify.close()
        return None
    return inotify
