"""What this process knows of the log of revocations, so that a server which has lost some is found out. Pure.

After a failover the new primary may never have heard of the last revocations, and may give their numbers to others. So
every revocation has a random id. We say with each call which number and id we know as the last; a script that finds
something else there answers ``diverged``. Whoever finds it out begins another era, so that all others learn of it; each
then writes back what it knows and the server does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from ostiary.plugins.redis.rows import LogEntry

# The latest so many can be revoked again.
MOST_REMEMBERED = 10_000


class KnownLog:
    def __init__(self) -> None:
        self._number: int | None = None
        self._id = ""
        self._entries: dict[str, LogEntry] = {}

    @property
    def arguments(self) -> tuple[str, str]:
        """The last number and its id, as scripts take them."""
        return ("", " ") if self._number is None else (str(self._number), self._id)

    def note_head(self, number: int, head_id: str) -> None:
        self._number, self._id = number, head_id

    def remember(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            if entry.revocation is not None:
                self._entries[entry.id] = entry
        while len(self._entries) > MOST_REMEMBERED:
            del self._entries[next(iter(self._entries))]

    def entries(self) -> list[LogEntry]:
        """In the order in which they were learnt."""
        return list(self._entries.values())
