"""Run a long computation in a thread without delaying the event loop in another one.

Used to parse files and to build an index. By default the event loop waits 5 ms for the GIL each time it has released it
while serving a request, and the garbage collector would scan all new objects in one run, however many there are.
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
# The garbage collector takes some milliseconds to scan this many new objects.
MANY_OBJECTS = 20_000


class _Turns:
    """Concurrent long work: the first one changes the settings of the interpreter, the last one restores them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work = 0
        self._interval = 0.0
        self._collects = False
        self._young = 0

    def begin(self) -> None:
        if gc.isenabled():
            # Collect existing garbage: `gc.freeze` would otherwise keep it in memory for good.
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
                # The new objects are long-lived and have no cycles, so reference counting frees them. Objects of
                # concurrent requests are frozen with them; those in cycles stay in memory.
                gc.freeze()
            if self._collects:
                gc.enable()


_TURNS = _Turns()


@contextmanager
def long_work(*, many: int = MANY_OBJECTS) -> Iterator[None]:
    """Switch threads more often and pause the garbage collector inside the context.

    If more than *many* objects are left, they are frozen with everything else that exists then. Code that runs often
    must not set *many* low.
    """
    _TURNS.begin()
    try:
        yield
    finally:
        _TURNS.end(many)


def free_lists(*lists: list[T]) -> None:
    """Empty *lists* item by item. Freeing a list of a hundred thousand objects in one step would hold the GIL."""
    for values in lists:
        while values:
            values.pop()


def free_dicts(*dicts: dict[K, T]) -> None:
    for values in dicts:
        while values:
            values.popitem()
