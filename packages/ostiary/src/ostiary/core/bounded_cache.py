"""Dicts with a bounded size, for caches.

`Bounded` limits the entries. `BoundedByOwner` also limits bytes, in total and per owner, so that one user's entries
evict only that user's entries.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from itertools import islice
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def seen_recently(key: K, latest: set[K], most: int) -> bool:
    """Return whether *key* was seen recently, and add it to *latest*, a set of at most *most* keys.

    Keys that differ on every request are seen only once, so a caller can avoid caching them.
    """
    if key in latest:
        return True
    if len(latest) >= most:
        latest.clear()
    latest.add(key)
    return False


class Bounded(dict[K, V]):
    """Holds at most *most* entries.

    When it is full, the oldest quarter is evicted in one step, so that eviction is rare.
    """

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            for oldest in list(self)[: max(1, self._most // 4)]:
                del self[oldest]
        self[key] = value


class _Owned(dict[K, int]):
    """The keys of one owner with their sizes, in insertion order."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        super().__init__()
        self.size = 0


class BoundedByOwner(dict[K, V]):
    """Holds at most *size* bytes and *entries* in total, and at most *share_size* and *share* of them for one owner.

    Sizes are those that the caller passes. A new entry evicts the oldest entries of the same owner; only if that is not
    enough, the oldest of all. The owner None has no limit of its own. Read it as a dict, but change it only with
    `keep`, `forget` and `clear`.
    """

    __slots__ = ("_entries", "_owned", "_owner_of", "_share", "_share_size", "_size", "held")

    def __init__(
        self, size: float, share_size: float, *, entries: float = float("inf"), share: float = float("inf")
    ) -> None:
        super().__init__()
        self._size, self._share_size, self._entries, self._share = size, share_size, entries, share
        self._owned: dict[Hashable, _Owned[K]] = {}
        self._owner_of: dict[K, Hashable] = {}
        # Total size of all entries in bytes.
        self.held = 0

    def keep(self, key: K, value: V, *, owner: Hashable, size: int) -> bool:
        """Add *value* as the newest entry of its owner; returns False if it exceeds the owner's limit."""
        self.forget(key)
        most = self._size if owner is None else min(self._size, self._share_size)
        if size > most or self._entries < 1:
            return False
        owned = self._owned.get(owner)
        if owned is not None and owner is not None:
            while owned and (owned.size + size > self._share_size or len(owned) >= self._share):
                self._forget_oldest(owned)
        while self.held + size > self._size or len(self) >= self._entries:
            self._forget_oldest(self)
        owned = self._owned.setdefault(owner, _Owned())
        owned[key] = size
        owned.size += size
        self.held += size
        self._owner_of[key] = owner
        self[key] = value
        return True

    def forget(self, key: K) -> None:
        if key not in self._owner_of:
            return
        owner = self._owner_of.pop(key)
        owned = self._owned[owner]
        size = owned.pop(key)
        owned.size -= size
        self.held -= size
        if not owned:
            del self._owned[owner]
        del self[key]

    def _forget_oldest(self, keys: Collection[K]) -> None:
        # In batches: finding the first key of a dict is slow after many were removed from its start.
        for key in list(islice(keys, max(1, len(keys) // 16))):
            self.forget(key)

    def clear(self) -> None:
        super().clear()
        self._owned.clear()
        self._owner_of.clear()
        self.held = 0
