"""What a machine must have for a curve to be made; what it lacks stands in the table."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator, Sequence

from bench.table import Row

# Beside the connections that are counted: the active ones, those to the backend, logs and the store.
_OTHER_DESCRIPTORS = 1_000


def rows_for_missing(what: str, *programs: str) -> Iterator[Row]:
    """A row if one of the *programs* is not installed: *what* cannot be measured then."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        yield Row(what, f"not measured: {' and '.join(missing)} not installed (scripts/components bench)")


def possible_sizes(sizes: Sequence[int]) -> list[int]:
    """Those that the limit of descriptors allows. It is raised to what the system lets this process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return [size for size in sizes if most == resource.RLIM_INFINITY or size + _OTHER_DESCRIPTORS <= most]
