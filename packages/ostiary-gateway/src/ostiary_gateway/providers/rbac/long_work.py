"""Lets a lot be computed in a thread beside the one that serves requests, which is not held up meanwhile.

Used around the parsing of files and the making of an index. Python lets another thread wait for 5 ms until it gets its
turn, at each of the several moments in which a request gives up its own; and the garbage collector would look through
all the new objects in one go, however many there are.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")

TURN_SECONDS = 0.0002
# So many new objects take the garbage collector some milliseconds.
MANY_OBJECTS = 20_000


class _Turns:
    """Several may be at work at once: the first one changes the settings of the interpreter, the last one undoes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work = 0
        self._interval = 0.0
        self._collects = False
        self._young = 0

    def begin(self) -> None:
        if gc.isenabled():
            # What is garbage now must not be put aside with the new objects: it would never be freed.
            gc.collect(0)
        with self._lock:
            if not self._at_work:
                self._interval, self._collects = sys.getswitchinterval(), gc.isenabled()
                sys.setswitchinterval(min(self._interval, TURN_SECONDS))
                gc.disable()
                self._young = gc.get_count()[0]
            self._at_work += 1

    def end(self, many: int) -> None:
        with self._lock:
            self._at_work -= 1
            if self._at_work:
                return
            sys.setswitchinterval(self._interval)
            if gc.get_count()[0] - self._young > many:
                # They are there to stay, and have no cycles: they are freed when nobody refers to them. So are those
                # of requests, which are put aside with them. Cycles that others leave meanwhile stay in memory.
                gc.freeze()
            if self._collects:
                gc.enable()


_TURNS = _Turns()


@contextmanager
def long_work(*, many: int = MANY_OBJECTS) -> Iterator[None]:
    """If it leaves more than *many* objects, the garbage collector never looks at them.

    Nor at anything else that is there then, so what is done again and again must not set this low.
    """
    _TURNS.begin()
    try:
        yield
    finally:
        _TURNS.end(many)


def free_lists(*lists: list[T]) -> None:
    """Empty these, item by item. As a whole, a hundred thousand objects are freed without giving up the turn."""
    for values in lists:
        while values:
            values.pop()


def free_dicts(*dicts: dict[K, T]) -> None:
    for values in dicts:
        while values:
            values.popitem()
