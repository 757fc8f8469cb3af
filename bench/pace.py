"""How long a run takes: in full, or only as long as it takes to see that everything works."""

from __future__ import annotations

import os
import sys
import time
from typing import TypeVar

Number = TypeVar("Number", int, float)
_VARIABLE = "OSTIARY_BENCH_QUICK"


def be_quick() -> None:
    """From now on, in this process and in those it starts. To be called before a suite is imported."""
    os.environ[_VARIABLE] = "1"


def is_quick() -> bool:
    return bool(os.environ.get(_VARIABLE))


def pace(full: Number, *, quick: Number) -> Number:
    """*full*, or *quick* where the figures do not matter."""
    return quick if is_quick() else full


class Progress:
    """Says on stderr which of so many steps is next, at most once a second."""

    def __init__(self, what: str, steps: int) -> None:
        self._what, self._steps = what, steps
        self._done, self._last = 0, 0.0

    def step(self, name: str) -> None:
        self._done += 1
        if (now := time.monotonic()) - self._last >= 1:
            self._last = now
            print(f"  {self._what}: {self._done} of {self._steps}, {name}", file=sys.stderr, flush=True)
