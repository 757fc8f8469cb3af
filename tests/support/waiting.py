"""Wait for what another process does and does not announce: ask until it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 60.0
_PAUSE_SECONDS = 0.01
T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "it", *, seconds: float = SECONDS) -> T:
    """Call *condition* until its result is true, and return it. Fails after *seconds*, and says *what* did not happen.

    It pauses in between: a test that only asks would keep a processor from those who are to do it.
    """
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {what}"
        time.sleep(_PAUSE_SECONDS)
    return result
