"""What a command needs beyond the package itself: told by the extra that brings it, and not by a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ostiary.errors import ConfigurationError


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Around the imports of a command: a library that is not installed is told with its *extra*."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "ostiary"):
            # A mistake of ours, which no extra mends.
            raise
        raise ConfigurationError(
            "ostiary is installed without what this command needs",
            cause=f"the library {library} is missing",
            hint=f"pip install 'ostiary[{extra}]'",
            code="library-missing",
        ) from None
