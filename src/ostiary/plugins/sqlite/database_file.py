"""The SQLite file of a token store: created, checked for its version, upgraded, connected to.

Called by the SQLite token store when it opens the file. What lies in it is told in `ostiary.plugins.sqlite.schema`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ostiary.plugins.sqlite import log, objects
from ostiary.plugins.sqlite.schema import ADDED_COLUMNS, ADDED_INDEXES, TABLES

APPLICATION_ID = 0x6F737469
VERSION = 2
# How long to wait for other processes that prepare a store in the same folder.
LOCK_SECONDS = 2.0
# How long another process may hold the file before we give up.
WAIT_SECONDS = 5.0


class NotOurs(Exception):
    """The file is not a token store that this version can use."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Lock the folder of the file: SQLite does not serialize processes that create a file."""
    folder = None
    # Go on without the lock if the folder cannot be read, the file system has no locks, or another process keeps it.
    with suppress(OSError):
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _lock(folder)
    try:
        yield
    finally:
        if folder is not None:
            os.close(folder)


def _lock(descriptor: int) -> None:
    give_up_at = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.005)


def create_file(path: str) -> None:
    """Make sure of the file, readable for its owner only. SQLite gives its other files the same mode."""
    # One that exists is not opened: closing it would end the locks that SQLite holds on it for this process.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # Anybody who can write to it can give themselves a session. A mounted volume's group is the operator's choice.
    if os.stat(path).st_mode & stat.S_IWOTH:
        raise NotOurs("every user of this machine can write to the file", f"chmod 600 {path}")


def connect(path: str, *, wait_seconds: float = WAIT_SECONDS) -> sqlite3.Connection:
    # Transactions are begun and ended by us, and a connection is used by one thread at a time, if not always the same.
    connection = sqlite3.connect(path, timeout=wait_seconds, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    # In KiB: enough for the upper levels of a large file, and all the memory that a store of any size takes.
    connection.execute("PRAGMA cache_size = -16384")
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables if the file is empty; raises `NotOurs` if it is something else."""
    _check_version(connection)
    _use_wal(connection)
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Checked again inside the transaction: another process may have created the tables meanwhile.
        version = _check_version(connection)
        if version == 0:
            for statement in TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif version == 1:
            _upgrade_from_1(connection)
        _add_what_came_later(connection)
        if version != VERSION:
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _upgrade_from_1(connection: sqlite3.Connection) -> None:
    """Sessions get their place among the revocations: after all that there are. Those have done their work."""
    head = log.last_revocation(connection)
    connection.execute("ALTER TABLE sessions ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0")
    connection.execute("UPDATE sessions SET sequence = ?", (head,))
    connection.execute("DROP TABLE revocations")
    for statement in log.TABLES:
        connection.execute(statement)
    # Numbers go on where they were; a sign-in that began before cannot know what the forgotten ones said.
    log.start_sequence(connection, head)
    connection.execute("UPDATE state SET forgotten = ?", (head,))


def _add_what_came_later(connection: sqlite3.Connection) -> None:
    """The version stays: a program of an earlier one can use the file as well, and after a return to it."""
    connection.execute(objects.TABLE)
    for table, columns in ADDED_COLUMNS.items():
        present = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for name, declaration in columns.items():
            if name not in present:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {declaration}")
    for name, columns_of_table in ADDED_INDEXES.items():
        connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {columns_of_table}")


def _check_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (objects or application):
        raise NotOurs("the file belongs to another program", "name another file in store.path")
    if not 0 <= version <= VERSION:
        hint = "use the version of ostiary that wrote it, or name another file in store.path"
        raise NotOurs(f"the file has the schema version {version}, and this ostiary knows up to {VERSION}", hint)
    return int(version)


def _use_wal(connection: sqlite3.Connection) -> None:
    give_up_at = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # Two processes that make this change at once are not put in order by SQLite's own waiting.
            if not is_busy(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.005)


def is_busy(error: sqlite3.Error) -> bool:
    # The upper bits are an extended code, such as for recovery. Errors of the Python module itself have no code.
    code = getattr(error, "sqlite_errorcode", 0)
    return bool(code & 0xFF == sqlite3.SQLITE_BUSY)
