"""What is needed beyond the package itself: told by the extra that brings it, and not by a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from ostiary.errors import LibraryMissing


@contextmanager
def needing(extra: str, *, purpose: str = "this command") -> Iterator[None]:
    """Around imports: a library that is not installed is told with its *extra*. *purpose* is what needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "ostiary", "ostiary_gateway") or isinstance(error, LibraryMissing):
            # A mistake of ours, which no extra mends; or told already.
            raise
        raise missing(library, extra, purpose=purpose) from None


def require(extra: str, *libraries: str, purpose: str = "this command") -> None:
    """Raise `LibraryMissing` if one of the *libraries* of an *extra* is not installed. Nothing is imported."""
    for library in libraries:
        if find_spec(library) is None:
            raise missing(library, extra, purpose=purpose)


def _distribution(extra: str) -> str:
    """Which of our distributions has *extra*."""
    # Slow to import, and only wanted when something is missing.
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
