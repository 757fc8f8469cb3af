"""Shared counts of one process, and of the processes of one machine.

    MemoryCounts    a dictionary, for a gateway with one worker
    MachineCounts   a table in memory (memfd) that the supervisor shares with its workers, protected by a file lock,
                    which the kernel releases when a worker dies

The counts of several machines are reconciled by `limits.replicated_counts`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeVar

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary_gateway.interfaces.shared_counts import NARROW, WIDE, Change, CountsFull, Reconciles, State

NARROW_LIMIT = 10_000
WIDE_LIMIT = 10_000
# Slots of the shared table; powers of two. Unused slots take no memory.
NARROW_SLOTS = 65_536
WIDE_SLOTS = 16_384
# A key is in one of so many slots following the position given by its digest.
PROBES = 16
# Byte offsets of the file locks.
_COUNTING, _WRITING = 0, 1

T = TypeVar("T")


class MemoryCounts:
    """Implements `ostiary_gateway.interfaces.shared_counts.ImmediateCounts` for one event loop."""

    def __init__(
        self, *, clock: Clock = SYSTEM_CLOCK, narrow_limit: int = NARROW_LIMIT, wide_limit: int = WIDE_LIMIT
    ) -> None:
        self._now: Callable[[], float] = clock.monotonic
        self._narrow: dict[str, tuple[State, float]] = {}
        self._wide: dict[str, tuple[State, float]] = {}
        self._narrow_limit, self._wide_limit = narrow_limit, wide_limit
        self._full_until = float("-inf")

    async def update(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        return self.update_now(key, change, wide=wide)

    def update_now(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        now = self._now()
        entry = (self._wide if wide else self._narrow).get(key)
        if entry is None and wide:
            self._check_room(now)
        new, seconds, result = change(entry[0] if entry is not None and entry[1] > now else (), now)
        _check_size(new, wide)
        if entry is None and not wide and seconds > 0 and len(self._narrow) >= self._narrow_limit:
            self._make_room(now)
        table = self._wide if wide else self._narrow
        if seconds > 0:
            table[key] = (new, now + seconds)
        else:
            table.pop(key, None)
        return result

    def report(self, key: str, how: Reconciles, amount: float = 1.0, *, part: int = 0) -> None:
        """Do nothing: there are no replicas."""

    def read_time_from(self, now: Callable[[], float]) -> None:
        """Use the time *now*, which is synchronized with other machines."""
        self._now = now

    async def close(self) -> None:
        self._narrow.clear()
        self._wide.clear()

    def __len__(self) -> int:
        return len(self._narrow) + len(self._wide)

    def _make_room(self, now: float) -> None:
        # If too many entries are still valid, drop the oldest: a quarter at a time, so that a flood of new keys does
        # not search the table for each of them.
        remaining = {key: entry for key, entry in self._narrow.items() if entry[1] > now}
        most = self._narrow_limit * 3 // 4
        self._narrow = remaining if len(remaining) <= most else dict(list(remaining.items())[-most:])

    def _check_room(self, now: float) -> None:
        if len(self._wide) < self._wide_limit:
            return
        # Searching all entries takes time, and none is dropped before the first one expires.
        if now >= self._full_until:
            self._wide = {key: entry for key, entry in self._wide.items() if entry[1] > now}
            self._full_until = min((entry[1] for entry in self._wide.values()), default=now)
        if len(self._wide) >= self._wide_limit:
            raise CountsFull


class _Table:
    """Slots in shared memory: digest of the key, expiry, number of values, values."""

    def __init__(self, memory: mmap.mmap, start: int, slots: int, width: int) -> None:
        self._memory, self._start, self._slots = memory, start, slots
        self._head = struct.Struct("16sdQ")
        self._size = self._head.size + 8 * width
        self.end = start + slots * self._size

    def find(self, digest: bytes, now: float) -> tuple[int, State]:
        """Return the position and state of a key, or the position of the slot that expires first."""
        first = int.from_bytes(digest[:8], "little")
        best, least = -1, float("inf")
        for probe in range(PROBES):
            place = self._start + (first + probe) % self._slots * self._size
            other, until, count = self._head.unpack_from(self._memory, place)
            if other == digest and until > now:
                return place, struct.unpack_from(f"{count}d", self._memory, place + self._head.size)
            if until < least:
                best, least = place, until
        return best, ()

    def is_free(self, place: int, digest: bytes, now: float) -> bool:
        other, until, _ = self._head.unpack_from(self._memory, place)
        return bool(until <= now or other == digest)

    def put(self, place: int, digest: bytes, state: State, until: float) -> None:
        struct.pack_into(f"{len(state)}d", self._memory, place + self._head.size, *state)
        self._head.pack_into(self._memory, place, digest, until, len(state))


class LineGuard:
    """Lets one process at a time write lines to a shared output, such as a pipe.

    A process in the middle of a line keeps the lock until the line is complete. If it dies, the next one sees `torn`.
    """

    def __init__(self, descriptor: int, memory: mmap.mmap, place: int) -> None:
        self._descriptor, self._memory, self._place = descriptor, memory, place
        self._inside = False

    def try_enter(self) -> bool:
        """Take the lock. Return False if another process holds it."""
        if not self._inside:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _WRITING)
            except OSError:
                return False
            self._inside = True
        return True

    @property
    def torn(self) -> bool:
        """Whether the previous owner of the lock did not complete its line."""
        return bool(self._memory[self._place])

    def leave(self) -> None:
        if self._inside:
            self._inside = False
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _WRITING)

    def note(self, *, torn: bool) -> None:
        """Record whether a line is incomplete: before a part of it is written, and after its end."""
        self._memory[self._place] = torn


class MachineCounts:
    """Implements `ostiary_gateway.interfaces.shared_counts.ImmediateCounts` for all processes with *descriptor*.

    The processes of a machine share the monotonic clock. With `read_time_from` all of them must use the same time, to
    within a few milliseconds.
    """

    def __init__(self, descriptor: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._now: Callable[[], float] = clock.monotonic
        # A duplicate, so that closing it does not affect others.
        self._descriptor = os.dup(descriptor)
        self._memory = mmap.mmap(self._descriptor, os.fstat(self._descriptor).st_size)
        self._narrow = _Table(self._memory, 0, NARROW_SLOTS, NARROW)
        self._wide = _Table(self._memory, self._narrow.end, WIDE_SLOTS, WIDE)

    @classmethod
    def create(cls) -> int:
        """Create the shared memory and return its descriptor, to be inherited by the processes."""
        descriptor = os.memfd_create("ostiary-counts")
        head = struct.calcsize("16sdQ")
        # One more byte for the line guard.
        os.ftruncate(descriptor, NARROW_SLOTS * (head + 8 * NARROW) + WIDE_SLOTS * (head + 8 * WIDE) + 1)
        return descriptor

    def line_guard(self) -> LineGuard:
        """Return a guard for an output that all processes with this memory write lines to."""
        return LineGuard(self._descriptor, self._memory, self._wide.end)

    async def update(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        return self.update_now(key, change, wide=wide)

    def update_now(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        table = self._wide if wide else self._narrow
        # Held for microseconds. The kernel releases it when the process dies.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, _COUNTING)
        try:
            now = self._now()
            place, state = table.find(digest, now)
            if wide and not state and not table.is_free(place, digest, now):
                raise CountsFull
            new, seconds, result = change(state, now)
            _check_size(new, wide)
            if seconds > 0:
                table.put(place, digest, new, now + seconds)
            elif state:
                table.put(place, digest, (), 0.0)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _COUNTING)
        return result

    def report(self, key: str, how: Reconciles, amount: float = 1.0, *, part: int = 0) -> None:
        """Do nothing: there are no replicas."""

    def read_time_from(self, now: Callable[[], float]) -> None:
        """Use the time *now*, which is synchronized with other machines."""
        self._now = now

    async def close(self) -> None:
        if self._descriptor >= 0:
            self._memory.close()
            os.close(self._descriptor)
            self._descriptor = -1


def _check_size(state: State, wide: bool) -> None:
    if len(state) > (WIDE if wide else NARROW):
        raise ValueError("a state has more numbers than fit")
