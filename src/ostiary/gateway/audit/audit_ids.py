"""The ids of requests: random UUIDs, made many at a time.

Called by the auditor once for each request.
"""

from __future__ import annotations

import os
from weakref import WeakSet

_IDS_AT_ONCE = 256
_TABLES_LAST = 256


class AuditIds:
    """Hands out ids. One process never hands out an id twice, and a forked one none that its parent had made."""

    __slots__ = ("__weakref__", "_beginnings", "_endings", "_ids", "_tables_left")

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._beginnings: list[str] = []
        self._endings: list[str] = []
        self._tables_left = 0
        _INSTANCES.add(self)

    def take(self) -> str:
        """A new id."""
        if not self._ids:
            self._refill()
        return self._ids.pop()

    def forget(self) -> None:
        """Drop the ids that are made and not yet handed out."""
        self._ids.clear()
        self._tables_left = 0

    def _refill(self) -> None:
        """Make 256 ids. Any two of them differ at both ends, where people look.

        They share the middle part, and the ends are paired anew each time: formatting every id in full would cost
        twenty times as much.
        """
        if not self._tables_left:
            self._beginnings = [os.urandom(4).hex() for _ in range(_IDS_AT_ONCE)]
            self._endings = [os.urandom(6).hex() for _ in range(_IDS_AT_ONCE)]
            self._tables_left = _TABLES_LAST
        self._tables_left -= 1
        shift, *digits = os.urandom(6)
        text = bytes(digits).hex()
        middle = f"-{text[:4]}-4{text[4:7]}-{'89ab'[shift & 3]}{text[7:]}-"
        pairs = zip(self._beginnings, self._endings[shift:] + self._endings[:shift], strict=True)
        self._ids.extend([beginning + middle + ending for beginning, ending in pairs])


# Only for the fork handler below, which must reach every instance.
_INSTANCES: WeakSet[AuditIds] = WeakSet()


def _forget_all() -> None:
    for ids in _INSTANCES:
        ids.forget()


if hasattr(os, "register_at_fork"):
    # Two workers must not hand out the ids that their parent had made.
    os.register_at_fork(after_in_child=_forget_all)
