"""File and directory change notifications on Linux (inotify). On other systems, callers poll."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

# From <sys/inotify.h>.
ATTRIBUTES, WRITTEN, MOVED_FROM, MOVED_TO = 0x004, 0x008, 0x040, 0x080
CREATED, DELETED, SELF_DELETED, SELF_MOVED = 0x100, 0x200, 0x400, 0x800
OVERFLOWED, IS_DIRECTORY = 0x4000, 0x4000_0000

_EVENT = struct.Struct("iIII")
_MANY_EVENTS = 64 * 1024


class Inotify:
    """A queue of events. Another thread can interrupt `wait` with `wake`."""

    def __init__(self, descriptor: int, pipe: tuple[int, int], library: ctypes.CDLL) -> None:
        self._descriptor, self._library = descriptor, library
        self._woken, self._waker = pipe
        os.set_blocking(self._waker, False)

    @classmethod
    def open(cls) -> Inotify | None:
        """Open a queue; None if the system has no inotify, or its limit is reached."""
        if not sys.platform.startswith("linux"):
            return None
        library = ctypes.CDLL(None, use_errno=True)
        descriptor: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            return None
        try:
            return cls(descriptor, os.pipe(), library)
        except OSError:
            os.close(descriptor)
            return None

    def fileno(self) -> int:
        return self._descriptor

    def watch(self, path: str, mask: int) -> bool:
        """Start watching *path*; False if that fails. Existing watches stay."""
        return int(self._library.inotify_add_watch(self._descriptor, os.fsencode(path), mask)) >= 0

    def wait(self, seconds: float) -> bool:
        """Return whether there are events within *seconds*."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        return any(descriptor == self._descriptor for descriptor, _ in poll.poll(seconds * 1000))

    def events(self) -> Iterator[int]:
        """Yield the masks of all pending events."""
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _MANY_EVENTS)
            at = 0
            while at < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, at)
                yield mask
                at += _EVENT.size + length

    def wake(self) -> None:
        with suppress(OSError):
            os.write(self._waker, b"\0")

    def close(self) -> None:
        descriptors = self._descriptor, self._woken, self._waker
        self._descriptor = self._woken = self._waker = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
