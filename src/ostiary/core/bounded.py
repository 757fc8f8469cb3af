"""A dict that does not grow for ever: what is found out once and kept for the next time, as long as there is room."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Bounded(dict[K, V]):
    """Holds at most *most* entries. When it is full, the oldest quarter makes room at once, which is rarely."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            for oldest in list(self)[: max(1, self._most // 4)]:
                del self[oldest]
        self[key] = value
