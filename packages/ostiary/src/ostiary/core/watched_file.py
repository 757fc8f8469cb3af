"""Detects file changes by polling with `stat`, and reloads changed files.

`WatchedFile` serves providers that load their users, groups or rules from one file; `fingerprint` and `is_settled` are
for other reloading code. A check costs one `stat`, so callers check on every use, without a background task.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection, Document, read
from ostiary.errors import ConfigurationError

# A file that was modified this recently may change again without a different fingerprint.
UNSETTLED_SECONDS = 2.0

T = TypeVar("T")


class Fingerprint(NamedTuple):
    """Metadata of a file. Equal fingerprints mean equal content once the file `is_settled`.

    `changed_ns` (ctime) detects a write of the same size that also restores the modification time, as by ``cp
    --preserve`` and ``rsync``.
    """

    modified_ns: int
    changed_ns: int
    size: int
    inode: int


def fingerprint(path: str | os.PathLike[str]) -> Fingerprint | None:
    """Return the fingerprint of the file at *path*; None if it is not accessible.

    Links are followed: the files of a mounted ConfigMap are links whose target is replaced.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return Fingerprint(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def is_settled(fingerprints: Iterable[Fingerprint | None], clock: Clock) -> bool:
    """Return whether no file was modified so recently that another write might leave its fingerprint unchanged."""
    newest = max((each.modified_ns for each in fingerprints if each is not None), default=0)
    return clock.now().timestamp() - newest / 1e9 > UNSETTLED_SECONDS


class WatchedFile(Generic[T]):
    """The content of the file at *path*, parsed by *load*. Thread-safe.

    `current` raises what *load* raises, every time until the file is fixed. It never falls back to the previous
    content, because the edit may have been meant to revoke exactly that.
    """

    def __init__(self, path: str | os.PathLike[str], load: Callable[[str], T], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = os.fspath(path)
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[Fingerprint, T] | None = None

    def current(self) -> T:
        with self._lock:
            look = fingerprint(self.path)
            if self._seen is not None and self._seen[0] == look and is_settled((look,), self._clock):
                return self._seen[1]
            # A change during the load gives a different fingerprint than the stored one and is read next time.
            self._seen = None
            content = self._load(self.path)
            self._seen = None if look is None else (look, content)
            return content

    def check(self, fields: ConfigSection, key: str) -> None:
        """Load the file once, and report its errors for the setting *key* that names the file."""
        try:
            self.current()
        except ConfigurationError as error:
            for problem in error.problems:
                fields.problem(f"{error.summary}: {problem}", key, problem.hint)


def watched_yaml(
    path: str | os.PathLike[str], load: Callable[[Document], T], *, clock: Clock = SYSTEM_CLOCK
) -> WatchedFile[T]:
    return WatchedFile(path, lambda name: load(read(name)), clock=clock)
