"""Missing optional dependencies: errors that name the extra to install instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ostiary.errors import LibraryMissing


@contextmanager
def needing(extra: str, *, purpose: str = "this command") -> Iterator[None]:
    """Wrap imports: a missing library is reported with its *extra*. *purpose* is what needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "ostiary", "ostiary_gateway") or isinstance(error, LibraryMissing):
            # A bug of ours that no extra fixes, or already reported.
            raise
        raise missing(library, extra, purpose=purpose) from None


def _distribution(extra: str) -> str:
    """Return which of our distributions has *extra*."""
    # Slow to import, and needed only if something is missing.
    from importlib.metadata import PackageNotFoundError, metadata

    with suppress(PackageNotFoundError):
        if extra not in (metadata("ostiary").get_all("Provides-Extra") or ()):
            return "ostiary-gateway"
    return "ostiary"


def missing(library: str, extra: str, *, purpose: str) -> LibraryMissing:
    return LibraryMissing(
        f"ostiary is installed without a library that {purpose} needs",
        cause=f"the library {library} is missing",
        hint=f"pip install '{_distribution(extra)}[{extra}]'",
    )
