"""What a file says, now: read again when it looks different, and not trusted while it cannot be read.

Called by the providers that keep their users, groups or rules in a file. Looking costs one `stat`, so that they
look whenever they are asked, and nothing runs in the background.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Document, Fields, read
from ostiary.errors import ConfigurationError

# A file that was written this recently may be written again without looking any different.
UNSETTLED_SECONDS = 2.0

T = TypeVar("T")
_Look = tuple[int, int, int]


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
        self._seen: tuple[_Look, T] | None = None

    def current(self) -> T:
        with self._lock:
            look = _look(self.path)
            if self._seen is not None and self._seen[0] == look and self._is_settled(look):
                return self._seen[1]
            # What changes while it is read looks different from what was seen, and is read next time.
            self._seen = None
            content = self._load(self.path)
            self._seen = None if look is None else (look, content)
            return content

    def check(self, fields: Fields, key: str) -> None:
        """Read it once, and note its mistakes where the setting *key* names the file."""
        try:
            self.current()
        except ConfigurationError as error:
            for problem in error.problems:
                fields.problem(f"{error.summary}: {problem}", key, problem.hint)

    def _is_settled(self, look: _Look) -> bool:
        return self._clock.now().timestamp() - look[0] / 1e9 > UNSETTLED_SECONDS


def watched_yaml(
    path: str | os.PathLike[str], load: Callable[[Document], T], *, clock: Clock = SYSTEM_CLOCK
) -> WatchedFile[T]:
    return WatchedFile(path, lambda name: load(read(name)), clock=clock)


def _look(path: str) -> _Look | None:
    """How the file looks from outside. Through links: the files of a mounted ConfigMap are links."""
    try:
        seen = os.stat(path)
    except (OSError, ValueError):
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino
