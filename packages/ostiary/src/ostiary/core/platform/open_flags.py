"""Platform-independent names of the flags for opening files."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenFlags:
    """Flags for `os.open`.

    `close_on_exec` includes binary mode: Windows would convert line ends otherwise. 0 means "not available".
    """

    close_on_exec: int
    no_follow: int
    no_block: int

    @classmethod
    def of(cls, system: object) -> OpenFlags:
        """Return the flags of *system*, which is `os` or an object with its names."""

        def flag(name: str) -> int:
            value = getattr(system, name, 0)
            assert isinstance(value, int)
            return value

        return cls(
            close_on_exec=flag("O_CLOEXEC") | flag("O_NOINHERIT") | flag("O_BINARY"),
            no_follow=flag("O_NOFOLLOW"),
            no_block=flag("O_NONBLOCK"),
        )


FLAGS = OpenFlags.of(os)
CLOSE_ON_EXEC, NO_FOLLOW, NO_BLOCK = FLAGS.close_on_exec, FLAGS.no_follow, FLAGS.no_block
