"""A mapping that never changes, and of which a changed copy is cheap: many small dicts. Knows nothing of RBAC. Pure.

Readers of one version are not disturbed by the making of the next. A copy shares all dicts but those in which
something changes, so a change among a million entries copies some hundred of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# So many entries are in a shard when the map is made, on average; with four times as many it is divided anew.
_PER_SHARD = 64
_MOST_PER_SHARD = 256


class ShardedMap(Generic[K, V]):
    """*items* by key. Of two with the same key the later one counts."""

    __slots__ = ("_mask", "_shards", "_size")

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        items = items or {}
        count = 1
        while count * _PER_SHARD < len(items):
            count *= 2
        self._mask = mask = count - 1
        shards: list[dict[K, V]] = [{} for _ in range(count)]
        for key, value in items.items():
            shards[hash(key) & mask][key] = value
        self._shards = shards
        self._size = len(items)

    def get(self, key: K) -> V | None:
        return self._shards[hash(key) & self._mask].get(key)

    def __getitem__(self, key: K) -> V:
        return self._shards[hash(key) & self._mask][key]

    def __contains__(self, key: object) -> bool:
        return key in self._shards[hash(key) & self._mask]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for shard in self._shards:
            yield from shard

    def values(self) -> Iterator[V]:
        for shard in self._shards:
            yield from shard.values()

    def items(self) -> Iterator[tuple[K, V]]:
        for shard in self._shards:
            yield from shard.items()

    def shards(self) -> tuple[dict[K, V], ...]:
        """Never to be changed."""
        return tuple(self._shards)

    def with_changes(self, changes: Mapping[K, V | None]) -> ShardedMap[K, V]:
        """A copy with these values; None takes a key out."""
        if not changes:
            return self
        if len(changes) * 4 > self._size:
            return ShardedMap(_changed_dict(dict(self.items()), changes))
        shards, mask, size = list(self._shards), self._mask, self._size
        copied: set[int] = set()
        for key, value in changes.items():
            at = hash(key) & mask
            if at not in copied:
                copied.add(at)
                shards[at] = dict(shards[at])
            size -= len(shards[at])
            _change_dict(shards[at], key, value)
            size += len(shards[at])
        if size > len(shards) * _MOST_PER_SHARD:
            return ShardedMap({key: value for shard in shards for key, value in shard.items()})
        copy: ShardedMap[K, V] = ShardedMap.__new__(ShardedMap)
        copy._shards, copy._mask, copy._size = shards, mask, size
        return copy


def _changed_dict(values: dict[K, V], changes: Mapping[K, V | None]) -> dict[K, V]:
    for key, value in changes.items():
        _change_dict(values, key, value)
    return values


def _change_dict(values: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
