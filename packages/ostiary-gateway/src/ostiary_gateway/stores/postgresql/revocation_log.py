"""The log of revocations in PostgreSQL: written, followed, taken back. A part of the token store.

Every revocation gets the next number of one sequence and a random proof. After a failover that lost commits, the same
number has another proof, or is not there yet: whoever has seen the first one is told to drop what they cached.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from ostiary.core.clock import Clock
from ostiary_gateway.interfaces.token_store import Revocation, RevocationBatch, RevocationKind
from ostiary_gateway.sessions import check_revocation
from ostiary_gateway.stores.postgresql.connections import Connection, DatabaseConnector
from ostiary_gateway.stores.postgresql.database import Database, Row, channel_of, quote_identifier
from ostiary_gateway.stores.postgresql.store_part import LONG_SECONDS, DatabaseTime, StorePart
from ostiary_gateway.stores.stored_session import decode_kind, encode_kind

# Wakes whoever waits for a revocation, as soon as the database tells of one (``LISTEN``).
#
# Called by the log of revocations. It only wakes: a notification that is lost costs a second, until the next poll. The
# connection is one of its own, since a pooler in transaction mode carries no notifications. When it breaks, it is made
# again after a moment.

# The pause before a broken connection is made again.
RETRY_SECONDS = 1.0
# How often a quiet connection is tried: one whose other end is gone would be silent for ever.
CHECK_SECONDS = 10.0
# The lock tells others that somebody uses the store: see `tables.examination`.
_NOTIFICATIONS_HEAD = "SELECT head, pg_advisory_lock_shared(1869837420, {schema}.lock_number()) FROM {schema}.state"


class Notifications:
    """Calls *on_head* with the number of each revocation, and with the last one once it listens."""

    def __init__(self, connector: DatabaseConnector, schema: str, on_head: Callable[[int], None]) -> None:
        self._connector = connector
        self._schema = schema
        self._on_head = on_head
        self._task: asyncio.Task[None] | None = None
        self.is_listening = False
        # How often a connection was made.
        self.connections = 0

    def start(self) -> None:
        """Begin in the background; harmless if it has begun."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="ostiary-notifications")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            # Whatever it is: the store itself will tell whoever asks it.
            with suppress(Exception):
                await self._listen()
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        connection = await self._connector.connect()
        try:
            ended = asyncio.Event()
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(channel_of(self._schema), self._notify)
            # Asked after it listens: what was written before has notified nobody here.
            head = await connection.fetchval(_NOTIFICATIONS_HEAD.format(schema=quote_identifier(self._schema)))
            self.is_listening = True
            self.connections += 1
            self._on_head(head)
            while not ended.is_set():
                await self._check(connection, ended)
        finally:
            self.is_listening = False
            connection.terminate()

    async def _check(self, connection: Connection, ended: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await ended.wait()
        if not ended.is_set():
            await connection.execute("SELECT 1")

    def _notify(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        # Whoever may connect may notify: what is no number is none of ours.
        with suppress(ValueError):
            self._on_head(int(payload))


# How often to ask for revocations of others where no notification can come.
UNNOTIFIED_SECONDS = 0.5
# More than this many at once are not read: whoever follows asks about all that it has cached.
MOST_FOLLOWED = 10_000
# So many sessions are ended in one transaction, where a revocation is about many.
END_BATCH = 5_000
# The proofs of so many numbers that were given out are remembered.
MOST_PROOFS = 64

_COLUMNS = """r.sequence, r.kind, r.value, r.at - now.shift AS at, r.author,
    r.recorded_at - now.shift AS recorded_at, r.owner"""
# A server with synchronous standbys proves with a commit, which one of them has to confirm, that it is still the
# primary: one that was replaced while it was cut off would go on answering, and know nothing of later revocations.
# A message in the write-ahead log is the smallest change there is; it locks nothing. In a subquery: once, and not for
# each row.
_PROVED = """(SELECT CASE WHEN current_setting('synchronous_standby_names') <> ''
    THEN pg_logical_emit_message(true, 'ostiary', '') END) AS proved"""
_HEAD = "SELECT now.clock, now.time, now.head, now.head_proof FROM now"
_PROVED_HEAD = f"SELECT now.clock, now.time, now.head, now.head_proof, {_PROVED} FROM now"  # noqa: S608
_AFTER = f"""SELECT now.clock, now.time, now.head, now.head_proof, {_PROVED},
        CASE $3 WHEN now.head THEN now.head_proof WHEN now.forgotten THEN now.forgotten_proof
            ELSE (SELECT proof FROM @schema@.revocations WHERE sequence = $3) END AS proof, {_COLUMNS}
    FROM now LEFT JOIN @schema@.revocations r ON r.sequence > $3 AND r.kind <> 'gap'
    ORDER BY r.sequence LIMIT $4"""  # noqa: S608
_MARKS = f"""SELECT now.clock, now.time, {_COLUMNS}
    FROM now LEFT JOIN @schema@.revocations r ON NOT r.undone AND r.kind <> 'gap'
    ORDER BY r.sequence DESC"""  # noqa: S608
# Some of the sessions that a revocation will be about, with their tokens; none if the database's clock says something
# else than we expect. $3 is that, $4 the time of the revocation, or null, $5 how many.
_END_SOME = """, gone AS (
        DELETE FROM @schema@.sessions WHERE number = ANY (ARRAY(
            SELECT s.number FROM @schema@.sessions s, now
            WHERE ($3::bigint IS NULL OR abs(now.clock - $3::bigint) <= 5000000)
                AND ($4::bigint IS NULL OR s.created_at <= $4::bigint + now.shift) {condition}
            LIMIT $5 FOR UPDATE OF s SKIP LOCKED
        )) RETURNING number, expires_at
    ), ended AS (DELETE FROM @schema@.tokens WHERE session IN (SELECT number FROM gone))
    SELECT now.clock, now.time, (SELECT count(*) FROM gone) AS gone,
        (SELECT count(*) FROM gone WHERE expires_at > now.time) AS living FROM now"""
_OF_GROUP = "AND s.groups @> ARRAY[@schema@.name_digest($6::text)]"
# The row stays: a gap in the numbers would mean a missed revocation.
_UNDO = """UPDATE @schema@.revocations SET undone = true WHERE sequence = $1 AND NOT undone AND kind <> 'gap'
    RETURNING true"""


class RevocationLog(StorePart):
    def __init__(self, database: Database, time: DatabaseTime, clock: Clock) -> None:
        super().__init__(database, time)
        self._clock = clock
        self._proofs: OrderedDict[int, object] = OrderedDict()
        self._changes_told = time.changes
        # The head that was told last, by the log itself or by a notification.
        self._told = 0
        # Whether the server has proved once that it is the primary.
        self._is_proved = False
        self._waiting: set[asyncio.Event] = set()
        settings, addresses = database.settings, database.settings.listen_addresses
        self._notifications = (
            Notifications(DatabaseConnector(settings, addresses, is_pooled=False), settings.schema, self._tell)
            if addresses
            else None
        )

    async def revoke(self, revocation: Revocation) -> int:
        check_revocation(revocation, self._clock.now())
        kind, value = encode_kind(revocation)
        # Groups and everything may be many sessions.
        is_large = revocation.kind in (RevocationKind.GROUP, RevocationKind.BEFORE)
        ended = await self._end_most(revocation) if is_large else 0
        row = await self._change(
            "revoke_of_owner",
            lambda: [
                kind.value,
                value,
                None if revocation.at is None else self._time.to_database(revocation.at),
                revocation.by,
                revocation.owner,
            ],
            seconds=LONG_SECONDS if is_large else None,
        )
        self._tell(row["sequence"])
        return ended + int(row["ended"])

    async def _end_most(self, revocation: Revocation) -> int:
        """End sessions in small transactions, all but the last: a million in one takes longer than any time limit.

        The revocation itself follows, and is what counts: it ends the rest, and whoever signed in meanwhile. If it
        cannot be written, the caller is told so, and makes it again.
        """
        of_group = revocation.kind is RevocationKind.GROUP
        statement = _END_SOME.format(condition=_OF_GROUP if of_group else "")
        ended, deleted = 0, END_BATCH
        while deleted == END_BATCH:
            at = None if revocation.at is None else self._time.to_database(revocation.at)
            arguments = [self._time.expected, at, END_BATCH, *([revocation.value] if of_group else [])]
            (row,) = await self._read(statement, *arguments, seconds=LONG_SECONDS)
            ended, deleted = ended + row["living"], row["gone"]
        return ended

    async def marks(self) -> list[Revocation]:
        rows = await self._read(_MARKS, seconds=LONG_SECONDS)
        return [self._revocation_of(row) for row in rows if row["sequence"] is not None]

    async def undo(self, sequence: int) -> bool:
        return bool(await self._database.fetch(_UNDO, sequence, repeatable=False))

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        told = self._told
        if sequence is None:
            # Every sign-in asks for it; only whoever begins to follow has to know that it is the primary's.
            rows = await self._read(_HEAD if self._is_proved else _PROVED_HEAD)
        else:
            rows = await self._read(_AFTER, sequence, MOST_FOLLOWED + 1)
        self._is_proved = True
        if self._told == told:
            # Nothing newer was told meanwhile. It may be less than before: a failover can lose revocations.
            self._told = rows[0]["head"]
        batch = RevocationBatch(rows[0]["head"]) if sequence is None else self._batch_of(rows, sequence)
        self._remember(rows[0])
        return batch

    def _batch_of(self, rows: list[Row], after: int) -> RevocationBatch:
        head, proof = rows[0]["head"], rows[0]["proof"]
        if len(rows) > MOST_FOLLOWED:
            return RevocationBatch(head, complete=False)
        later = tuple([self._revocation_of(row) for row in rows if row["sequence"] is not None])
        # Numbers have no gaps: where one is missing, it was forgotten, or times were corrected.
        is_complete = len(later) == head - after and self._proofs.get(after, proof) == proof
        if self._changes_told != self._time.changes:
            # By this machine's clock everything that was given out before ends at another time.
            self._changes_told, is_complete = self._time.changes, False
        return RevocationBatch(head, later, complete=is_complete)

    async def wait_for_revocations(self, after: int, seconds: float) -> None:
        self._database.check_open()
        if self._notifications is not None:
            self._notifications.start()
        if self._notifications is None or not self._notifications.is_listening:
            seconds = min(seconds, UNNOTIFIED_SECONDS)
        if self._told != after:
            return
        woken = asyncio.Event()
        self._waiting.add(woken)
        try:
            async with asyncio.timeout(seconds):
                await woken.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(woken)

    async def _close_log(self) -> None:
        if self._notifications is not None:
            await self._notifications.close()
        self._tell(self._told)

    def _tell(self, head: int) -> None:
        self._told = head
        for woken in self._waiting:
            woken.set()

    def _remember(self, row: Row) -> None:
        self._proofs[row["head"]] = row["head_proof"]
        while len(self._proofs) > MOST_PROOFS:
            self._proofs.popitem(last=False)

    def _revocation_of(self, row: Row) -> Revocation:
        moment = self._time.moment
        return self._decode(
            lambda: Revocation(
                *decode_kind(row["kind"], row["value"]),
                None if row["at"] is None else moment(row["at"]),
                row["author"],
                row["sequence"],
                moment(row["recorded_at"]),
                row["owner"],
            )
        )
