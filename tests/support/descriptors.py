"""The file descriptors of this process: which are open, and how code behaves when there are none left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def descriptors() -> set[tuple[str, str]]:
    """Number and target of each descriptor, except sockets: threads of other tests' servers open and close them.

    Such a thread may hold a file for a moment, too, so compare with `until`.
    """
    found = set()
    for number in os.listdir("/dev/fd"):
        with suppress(OSError):
            target = os.readlink(f"/dev/fd/{number}")
            if not target.startswith("socket:"):
                found.add((number, target))
    return found


@contextmanager
def few_descriptors(spare: int = 0) -> Iterator[None]:
    """At most *spare* more files can be opened meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as file:
        lowest_free = file.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
