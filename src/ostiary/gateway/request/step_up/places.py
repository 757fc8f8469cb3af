"""How many requests wait for step-ups at a time: of one user, and in all. One instance per worker."""

from __future__ import annotations

from collections import Counter


class HeldPlaces:
    def __init__(self, *, per_user: int, in_all: int) -> None:
        self._per_user, self._in_all = per_user, in_all
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._held.total()

    def take(self, username: str) -> bool:
        """A place for one more request; False if there is none. `leave` gives it back."""
        if self._held[username] >= self._per_user or len(self) >= self._in_all:
            return False
        self._held[username] += 1
        return True

    def leave(self, username: str) -> None:
        self._held[username] -= 1
        if not self._held[username]:
            del self._held[username]
