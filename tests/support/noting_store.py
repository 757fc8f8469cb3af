"""A token store that replicas can share, for tests: SQLite, with notes and an owner in a second file beside it.

`install` declares it as somebody else's package, so that a gateway in a process of its own finds it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ProviderError
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.store_capabilities import LARGEST_NOTE, MOST_NOTES, Note
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore

ROOT = Path(__file__).parents[2]
ENTRY_POINTS = "[ostiary.token_store]\nnoting = tests.support.noting_store:NotingStore\n"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS notes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT, key TEXT, data BLOB, written REAL, expires REAL,
    UNIQUE (topic, key)
);
CREATE TABLE IF NOT EXISTS owner (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), name TEXT);
"""


def install(directory: Path) -> dict[str, str]:
    """Declare it in *directory*; returns the environment of a process that is to find it."""
    info = directory / "noting-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return {"PYTHONPATH": f"{directory}:{ROOT}"}


class NotingStore(SqliteTokenStore):
    """Its methods for replicas fail while `away` is set."""

    def __init__(self, path: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(path, clock=clock)
        self._time = clock
        self.away = False
        # Opened once: the tests of one process may change their thread.
        self._database = sqlite3.connect(f"{path}.notes", isolation_level=None, timeout=30, check_same_thread=False)
        self._database.executescript(_SCHEMA)

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> NotingStore:
        return cls(str(context.path(fields.string("path"))), clock=context.clock)

    async def put_notes(self, topic: str, notes: Mapping[str, bytes], *, seconds: float) -> None:
        if any(len(data) > LARGEST_NOTE for data in notes.values()):
            raise ValueError("a note is too large")
        now = self._now()
        rows = [(topic, key, data, now, now + seconds) for key, data in notes.items()]
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(
            "INSERT OR REPLACE INTO notes (topic, key, data, written, expires) VALUES (?, ?, ?, ?, ?)", rows
        )
        self._database.execute(
            "DELETE FROM notes WHERE topic = ? AND number NOT IN"
            " (SELECT number FROM notes WHERE topic = ? ORDER BY number DESC LIMIT ?)",
            (topic, topic, MOST_NOTES),
        )
        self._database.execute("COMMIT")

    async def find_note(self, topic: str, key: str) -> Note | None:
        rows = self._select("topic = ? AND key = ?", topic, key)
        return rows[0] if rows else None

    async def latest_notes(self, topic: str, limit: int) -> list[Note]:
        return self._select("topic = ?", topic)[:limit]

    async def remove_note(self, topic: str, key: str) -> None:
        self._now()
        self._database.execute("DELETE FROM notes WHERE topic = ? AND key = ?", (topic, key))

    async def claim(self, owner: str, *, anew: bool = False) -> str:
        self._now()
        verb = "REPLACE" if anew else "IGNORE"
        self._database.execute(f"INSERT OR {verb} INTO owner VALUES (1, ?)", (owner,))
        return str(self._database.execute("SELECT name FROM owner").fetchone()[0])

    async def close(self) -> None:
        await super().close()
        self._database.close()

    def _select(self, condition: str, *values: str) -> list[Note]:
        rows = self._database.execute(
            f"SELECT key, data, written FROM notes WHERE {condition} AND expires > ? ORDER BY number DESC",
            (*values, self._now()),
        )
        return [Note(key, data, datetime.fromtimestamp(written, UTC)) for key, data, written in rows]

    def _now(self) -> float:
        if self.away:
            raise ProviderError("the token store is away", code="token-store-unavailable")
        return self._time.now().timestamp()
