"""The objects of one kind by key, in many small dicts. Changed by one task; knows nothing of what they mean.

A single dict of a hundred thousand entries takes milliseconds when it grows, is copied or is freed, and no request is
served meanwhile. Here each of these is done a part at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

from ostiary.plugins.rbac.policy import ObjectKey
from ostiary.wire.rbac import Binding, Role

# A power of two. With a million objects there are four thousand in each.
SHARDS = 256


class KnownObjects:
    """A mapping of objects. `shards` is for reading only."""

    __slots__ = ("_size", "shards")

    def __init__(self) -> None:
        self.shards: tuple[dict[ObjectKey, Role | Binding], ...] = tuple({} for _ in range(SHARDS))
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self.shards[hash(key) % SHARDS]

    def get(self, key: ObjectKey) -> Role | Binding | None:
        return self.shards[hash(key) % SHARDS].get(key)

    def put(self, key: ObjectKey, item: Role | Binding | None) -> Role | Binding | None:
        """Set it, or take it out if *item* is None; what it was before."""
        shard = self.shards[hash(key) % SHARDS]
        before = shard.get(key)
        if item is None:
            shard.pop(key, None)
        else:
            shard[key] = item
        self._size += (item is not None) - (before is not None)
        return before

    def take_out(self, count: int) -> Iterator[list[tuple[ObjectKey, Role | Binding]]]:
        """All objects, *count* at a time; they are no longer here then."""
        for shard in self.shards:
            while shard:
                part = [shard.popitem() for _ in range(min(count, len(shard)))]
                self._size -= len(part)
                yield part
