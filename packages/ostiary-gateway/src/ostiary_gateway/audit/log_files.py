"""Read the lines of audit logs: plain or compressed files, or standard input.

A log may be large, truncated by a crash, or contain an endless line. So one line at a time is in memory, up to a
maximum length.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from ostiary.errors import ConfigurationError

STDIN = "-"
# kube-apiserver records whole objects, of 3 MiB at most, twice.
LONGEST_LINE = 16 * 1024 * 1024
_GZIP = b"\x1f\x8b"
_BUFFER = 1024 * 1024
# How many lines to read between two calls of `Counts.on_progress`.
LINES_PER_CALL = 10_000
_PLACES_KEPT = 5

LogPath = str | os.PathLike[str]


@dataclass(slots=True)
class Counts:
    """Statistics about the lines: `undecided` are events without a decision, `unreadable` lines that are not events.

    `places` are the first unreadable lines, as file and line number. Their contents are never quoted.
    """

    unreadable: int = 0
    undecided: int = 0
    lines: int = 0
    places: list[str] = field(default_factory=list)
    on_progress: Callable[[int], None] | None = None

    def count_unreadable(self, path: LogPath, number: int) -> None:
        self.unreadable += 1
        if len(self.places) < _PLACES_KEPT:
            name = "standard input" if path == STDIN else os.fspath(path)
            self.places.append(f"{name}:{number}")


def lines(path: LogPath, counts: Counts) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not blank, with its number. Raises `ConfigurationError` if the file cannot be read."""
    try:
        with _open(path) as log:
            number = 0
            while line := log.readline(LONGEST_LINE):
                number += 1
                counts.lines += 1
                if counts.on_progress is not None and not counts.lines % LINES_PER_CALL:
                    counts.on_progress(counts.lines)
                if len(line) == LONGEST_LINE and line[-1:] != b"\n":
                    _skip_rest(log)
                    counts.count_unreadable(path, number)
                elif not line.isspace():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        # A truncated gzip file raises EOFError: what is missing is unknown.
        raise ConfigurationError(
            "the audit log cannot be read",
            cause=getattr(error, "strerror", None) or "the compressed file is damaged or cut short",
            where="standard input" if path == STDIN else os.fspath(path),
            code="config-unreadable",
        ) from None


def _open(path: LogPath) -> BinaryIO:
    """Open a log. Compression is detected by content, because rotation may rename a log."""
    if path == STDIN:
        if sys.stdin is None:
            raise OSError(errno.EBADF, "it is closed")
        # A duplicate descriptor, so that closing this one leaves standard input open.
        raw: BinaryIO = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=_BUFFER)
    else:
        raw = open(path, "rb", buffering=_BUFFER)  # noqa: SIM115  # closed by the caller
    if cast(io.BufferedReader, raw).peek(2)[:2] != _GZIP:
        return raw
    unpacked = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw)), _BUFFER)
    return cast(BinaryIO, unpacked)


def _skip_rest(log: BinaryIO) -> None:
    while (rest := log.readline(LONGEST_LINE)) and rest[-1:] != b"\n":
        pass
