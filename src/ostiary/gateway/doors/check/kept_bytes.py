"""How much is kept for a connection, and for all of them together: calls that are not complete, answers not yet read.

Used by `check.connection`, which ends a connection that makes us keep too much.
"""

from __future__ import annotations

# Of one connection, and of all of them.
MOST_KEPT = 2 * 1024 * 1024
MOST_KEPT_IN_ALL = 64 * 1024 * 1024
# Who keeps no more than this goes on, whatever the others do.
MODEST = 64 * 1024
# So much may come without being anything whole: the largest metadata with its frames, several times.
MOST_UNREADABLE = 64 * 1024
# About what a call takes of memory before anything of its message has come.
CALL_BYTES = 4096


class KeptInAll:
    """What all connections keep."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class KeptBytes:
    """What one connection keeps."""

    __slots__ = ("_in_all", "_size", "_unreadable")

    def __init__(self, in_all: KeptInAll) -> None:
        self._in_all = in_all
        self._size = 0
        # What has come of something that is not whole yet: the library keeps headers that are in many frames.
        self._unreadable = 0

    @property
    def is_too_much(self) -> bool:
        if self._size <= MODEST:
            return False
        return self._size > MOST_KEPT or self._unreadable > MOST_UNREADABLE or self._in_all.size > MOST_KEPT_IN_ALL

    def add(self, size: int) -> None:
        """So many bytes more are kept; or less, if it is negative."""
        self._size += size
        self._in_all.size += size

    def note_received(self, size: int, *, is_whole: bool) -> None:
        """Bytes have come; *is_whole*: they completed something, which is counted by whoever keeps it."""
        change = -self._unreadable if is_whole else size
        if change:
            self._unreadable += change
            self.add(change)

    def release(self) -> None:
        """The connection has ended."""
        self._in_all.size -= self._size
        self._size = self._unreadable = 0
