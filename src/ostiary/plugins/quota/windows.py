"""How many requests were admitted under a limit in the span of time before now, by key.

Called by the admission provider. A span is counted in sixty parts, which are forgotten one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial

from ostiary.core.counting.counts import MemoryCounts
from ostiary.interfaces.shared_counts import Change, CountsFull, ImmediateCounts, State

PARTS = 60

# How many requests there were in each sixtieth of the span: the number of the first part, and a count for it and for
# each that follows.


def _recent(state: State, oldest: int) -> tuple[int, list[float]]:
    """The counts from the part *oldest* on; the first of them is not zero."""
    first, counts = (int(state[0]), list(state[1:])) if state else (oldest, [])
    first, counts = max(first, oldest), counts[max(0, oldest - first) :]
    while counts and not counts[0]:
        first += 1
        counts.pop(0)
    return first, counts


class LimitWindows:
    """The windows of one limit, by key. When there are too many keys, new ones are refused, not old ones forgotten.

    `settled` does not say which of several equal requests it is about. So a refusal settles the oldest of them and a
    success the newest: in any case, what stays counted stays for long enough.
    """

    # They implement `ostiary.interfaces.shared_counts.Reconciles`.
    wide = True

    def __init__(self, count: int, seconds: float, counts: ImmediateCounts, name: str) -> None:
        self._count, self._seconds = count, seconds
        self._shared = counts
        self._prefix = f"quota/{name}/"
        self._part_seconds = self._seconds / PARTS
        # The parts in which those were counted that this worker has admitted, and whose answer is not known yet.
        self._unsettled: dict[str, deque[int]] = {}

    def add(self, key: str) -> tuple[float, int]:
        """Count one more and return zero; or how many seconds there is no room, and how many are counted."""
        if not self._count:
            return self._seconds, 0
        try:
            wait, in_use, part = self._shared.update_now(self._prefix + key, self._add, wide=True)
        except CountsFull:
            return self._part_seconds, 0
        if not wait:
            self._unsettled.setdefault(key, deque()).append(part)
            self._shared.report(self._prefix + key, self, part=part)
        return wait, in_use

    def take_back(self, key: str) -> None:
        """What was just counted does not count: another limit has refused it."""
        part = self._pop(key, newest=True)
        if part is not None:
            self._subtract(key, partial(self._remove, part))

    def settle(self, key: str, *, refused: bool) -> None:
        part = self._pop(key, newest=not refused)
        if part is not None and refused:
            # Any of them may be the one that was refused: the one that would be forgotten first is.
            self._subtract(key, partial(self._remove_oldest, part))

    def _subtract(self, key: str, change: Change[int | None]) -> None:
        part = self._shared.update_now(self._prefix + key, change, wide=True)
        if part is not None:
            self._shared.report(self._prefix + key, self, -1.0, part=part)

    def _pop(self, key: str, *, newest: bool) -> int | None:
        unsettled = self._unsettled.get(key)
        if not unsettled:
            return None
        part = unsettled.pop() if newest else unsettled.popleft()
        if not unsettled:
            del self._unsettled[key]
        return part

    def __len__(self) -> int:
        assert isinstance(self._shared, MemoryCounts), "the counts of other workers are unknown"
        return len(self._shared)

    # --- changes of a window ---

    def _add(self, state: State, now: float) -> tuple[State, float, tuple[float, int, int]]:
        part = int(now // self._part_seconds)
        first, counts = _recent(state, part - PARTS)
        total = int(sum(counts))
        if total >= self._count:
            leaves_at = (first + PARTS + 1) * self._part_seconds
            return *self._pack_window(first, counts, now), (max(leaves_at - now, 0.001), total, part)
        # A clock that was corrected may lie behind what is counted already: then it counts as long as that.
        part = max(part, first)
        first = first if counts else part
        counts += [0.0] * (part - first + 1 - len(counts))
        counts[part - first] += 1
        return *self._pack_window(first, counts, now), (0.0, total, part)

    def _remove(self, part: int, state: State, now: float) -> tuple[State, float, int | None]:
        """Returns the part that it was removed from; None if it was not there."""
        first, counts = _recent(state, int(now // self._part_seconds) - PARTS)
        is_there = first <= part < first + len(counts) and counts[part - first] > 0
        if is_there:
            counts[part - first] -= 1
        return *self._pack_window(first, counts, now), part if is_there else None

    def _remove_oldest(self, part: int, state: State, now: float) -> tuple[State, float, int | None]:
        """The same."""
        first, counts = _recent(state, int(now // self._part_seconds) - PARTS)
        # One that has been forgotten anyway is not taken from the others.
        is_there = bool(counts) and part >= first
        if is_there:
            counts[0] -= 1
        return *self._pack_window(first, counts, now), first if is_there else None

    def _pack_window(self, first: int, counts: list[float], now: float) -> tuple[State, float]:
        while counts and not counts[-1]:
            counts.pop()
        if not counts:
            return (), 0.0
        until = (first + len(counts) + PARTS) * self._part_seconds
        return (float(first), *counts), until - now

    # --- several replicas ---

    def charge(self, shared: State, now: float, amounts: Mapping[int, float]) -> tuple[State, float]:
        """What was admitted is counted, also beyond the limit."""
        newest = int(now // self._part_seconds)
        first, counts = _recent(shared, newest - PARTS)
        window = {first + number: count for number, count in enumerate(counts)}
        for part, amount in amounts.items():
            if part >= newest - PARTS:
                # By another machine's clock it may be a moment later.
                place = min(part, newest)
                window[place] = max(0.0, window.get(place, 0.0) + amount)
        if not window:
            return (), 0.0
        first = min(window)
        return self._pack_window(first, [window.get(part, 0.0) for part in range(first, max(window) + 1)], now)

    def adopt(self, local: State, now: float, *, shared: State, unsettled: Mapping[int, float]) -> tuple[State, float]:
        """The window of all replicas, and what this worker has counted since."""
        return self.charge(shared, now, unsettled)
