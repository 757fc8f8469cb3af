"""Objects in a SQLite file: how they lie there, and what changes them.

Called by the SQLite token store, the changes always inside its transactions.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime

from ostiary.interfaces.store_abilities import stored_objects
from ostiary.interfaces.store_abilities.stored_objects import StoredObject
from ostiary.plugins.common.sessions.stored_session import moment_of
from ostiary.plugins.sqlite import log
from ostiary.plugins.sqlite.log import Row

# AUTOINCREMENT: a version is never used again. A change writes another row, so each gets the next one.
TABLE = """CREATE TABLE IF NOT EXISTS objects (
    version INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL, changed_at INTEGER NOT NULL,
    data BLOB NOT NULL, UNIQUE (kind, name))"""
_COLUMNS = "kind, name, data, version, changed_at"
FIND = f"SELECT {_COLUMNS} FROM objects WHERE kind = ? AND name = ?"  # noqa: S608
LIST = f"SELECT {_COLUMNS} FROM objects WHERE kind = ? AND name > ? ORDER BY name LIMIT ?"  # noqa: S608
COUNT_WITH_PREFIX = "SELECT count(*) FROM objects WHERE kind = ? AND name >= ? AND name < ?"
COUNT_FROM = "SELECT count(*) FROM objects WHERE kind = ? AND name >= ?"
KINDS = "SELECT DISTINCT kind FROM objects ORDER BY kind"
_VERSION = "SELECT version FROM objects WHERE kind = ? AND name = ?"
_COUNT = "SELECT count(*) FROM objects WHERE kind = ?"

# What `put` answers if the kind is full.
FULL = -1


def put(db: sqlite3.Connection, kind: str, name: str, data: bytes, *, version: int | None, now: datetime) -> int | None:
    """The new version; None if another is there than *version*, and `FULL` if there is no room."""
    row = db.execute(_VERSION, (kind, name)).fetchone()
    if version is not None and version != (row[0] if row else 0):
        return None
    if row is None and db.execute(_COUNT, (kind,)).fetchone()[0] >= stored_objects.MOST_OBJECTS:
        return FULL
    if row is not None:
        db.execute("DELETE FROM objects WHERE version = ?", (row[0],))
    time = log.advance_time(db, now)
    values = (kind, name, time, data)
    inserted = db.execute("INSERT INTO objects (kind, name, changed_at, data) VALUES (?, ?, ?, ?)", values)
    return inserted.lastrowid


def delete(db: sqlite3.Connection, kind: str, name: str, *, version: int | None) -> bool:
    row = db.execute(_VERSION, (kind, name)).fetchone()
    if row is None or version not in (None, row[0]):
        return False
    db.execute("DELETE FROM objects WHERE version = ?", (row[0],))
    return True


def decode(row: Row) -> StoredObject:
    kind, name, data, version, changed_at = row
    return StoredObject(kind, name, bytes(data), version, moment_of(changed_at))
