"""Tells whether a file has changed, and reads it again when it has.

`WatchedFile` is used by the providers that keep their users, groups or rules in one file; `fingerprint` and
`is_settled` by everything else that reads its files again. Looking costs one `stat`, so callers look whenever they are
asked, and nothing runs in the background.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection, Document, read
from ostiary.errors import ConfigurationError

# A file that was written this recently may be written again without looking any different.
UNSETTLED_SECONDS = 2.0

T = TypeVar("T")


class Fingerprint(NamedTuple):
    """How a file looks from outside. Two equal ones are of the same content, once the file `is_settled`.

    `changed_ns` (ctime) notices what was written with the same size and then given its old modification time, as
    ``cp --preserve`` and ``rsync`` do.
    """

    modified_ns: int
    changed_ns: int
    size: int
    inode: int


def fingerprint(path: str | os.PathLike[str]) -> Fingerprint | None:
    """The fingerprint of the file at *path*; None if it cannot be seen.

    Through links: the files of a mounted ConfigMap are links, whose target is exchanged.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return Fingerprint(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def is_settled(fingerprints: Iterable[Fingerprint | None], clock: Clock) -> bool:
    """Whether none of the files was written so recently that another write might leave its fingerprint as it is."""
    newest = max((each.modified_ns for each in fingerprints if each is not None), default=0)
    return clock.now().timestamp() - newest / 1e9 > UNSETTLED_SECONDS


class WatchedFile(Generic[T]):
    """The content of the file at *path*, as *load* reads it. Used from any thread.

    `current` raises what *load* raises, every time until the file is mended: what was true before somebody
    edited the file may be just what the edit took away.
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
            # What changes while it is read looks different from what was seen, and is read next time.
            self._seen = None
            content = self._load(self.path)
            self._seen = None if look is None else (look, content)
            return content

    def check(self, fields: ConfigSection, key: str) -> None:
        """Read it once, and note its mistakes where the setting *key* names the file."""
        try:
            self.current()
        except ConfigurationError as error:
            for problem in error.problems:
                fields.problem(f"{error.summary}: {problem}", key, problem.hint)


def watched_yaml(
    path: str | os.PathLike[str], load: Callable[[Document], T], *, clock: Clock = SYSTEM_CLOCK
) -> WatchedFile[T]:
    return WatchedFile(path, lambda name: load(read(name)), clock=clock)
