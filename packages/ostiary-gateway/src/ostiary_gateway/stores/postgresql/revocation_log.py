"""The revocation log in PostgreSQL: write, follow, lift.

Every revocation gets the next number of one sequence and a random proof. After a failover that lost commits, the same
number has another proof, or does not exist yet: readers that have seen the first one must drop their caches.
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

# Notifications (``LISTEN``). They only wake waiting callers: a lost one costs a delay until the next poll. The
# connection
# is a separate one, since a pooler in transaction mode carries no notifications. When it breaks, it is opened again.

# The delay before a broken connection is opened again.
RETRY_SECONDS = 1.0
# Interval of checking a quiet connection: one whose peer is gone would be silent for ever.
CHECK_SECONDS = 10.0
# The lock shows other processes that the store is in use: see `transfer.PostgresqlExamination`.
_NOTIFICATIONS_HEAD = "SELECT head, pg_advisory_lock_shared(1869837420, {schema}.lock_number()) FROM {schema}.state"


class Notifications:
    """Calls *on_head* with the number of each revocation, and with the last one once it listens."""

    def __init__(self, connector: DatabaseConnector, schema: str, on_head: Callable[[int], None]) -> None:
        self._connector = connector
        self._schema = schema
        self._on_head = on_head
        self._task: asyncio.Task[None] | None = None
        self.is_listening = False
        # Number of connections opened so far.
        self.connections = 0

    def start(self) -> None:
        """Start in the background; harmless if it has been started."""
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
            # Any error: the store's own calls report it.
            with suppress(Exception):
                await self._listen()
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        connection = await self._connector.connect()
        try:
            ended = asyncio.Event()
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(channel_of(self._schema), self._notify)
            # Read after subscribing: earlier revocations sent no notification here.
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
        # Any role that can connect can notify: ignore what is not a number.
        with suppress(ValueError):
            self._on_head(int(payload))


# Interval of polling for other replicas' revocations without notifications.
UNNOTIFIED_SECONDS = 0.5
# Maximum number read together; a reader that is further behind drops its cache.
MOST_FOLLOWED = 10_000
# Sessions ended per transaction, for a revocation of many.
END_BATCH = 5_000
# Number of cached proofs of numbers that were returned.
MOST_PROOFS = 64

_COLUMNS = """r.sequence, r.kind, r.value, r.at - now.shift AS at, r.author,
    r.recorded_at - now.shift AS recorded_at, r.owner"""
# A server with synchronous standbys proves that it is still the primary with a commit, which a standby has to confirm:
# one that was replaced while it was cut off would still respond, and lack later revocations. A message in the
# write-ahead log is the smallest possible change; it locks nothing. In a subquery: once, not for each row.
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
# Some of the sessions that a revocation covers, with their tokens; none if the database's clock differs from the
# expected $3. $4 is the time of the revocation, or null, $5 how many.
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
    """The revocation log in PostgreSQL."""

    def __init__(self, database: Database, time: DatabaseTime, clock: Clock) -> None:
        super().__init__(database, time)
        self._clock = clock
        self._proofs: OrderedDict[int, object] = OrderedDict()
        self._changes_told = time.changes
        # The latest head, from the log itself or from a notification.
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
        # These may end many sessions.
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
        """End sessions in small transactions, all but the last: a million in one takes longer than any timeout.

        The revocation itself follows, and is authoritative: it ends the rest, and sessions that began meanwhile. If it
        cannot be written, the caller gets an error and retries.
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
            # Every sign-in reads it; only a reader that begins to follow must know that it is the primary's.
            rows = await self._read(_HEAD if self._is_proved else _PROVED_HEAD)
        else:
            rows = await self._read(_AFTER, sequence, MOST_FOLLOWED + 1)
        self._is_proved = True
        if self._told == told:
            # No newer head arrived meanwhile. It may be lower than before: a failover can lose revocations.
            self._told = rows[0]["head"]
        batch = RevocationBatch(rows[0]["head"]) if sequence is None else self._batch_of(rows, sequence)
        self._remember(rows[0])
        return batch

    def _batch_of(self, rows: list[Row], after: int) -> RevocationBatch:
        head, proof = rows[0]["head"], rows[0]["proof"]
        if len(rows) > MOST_FOLLOWED:
            return RevocationBatch(head, complete=False)
        later = tuple([self._revocation_of(row) for row in rows if row["sequence"] is not None])
        # Numbers have no gaps: a missing one was deleted, or times were corrected.
        is_complete = len(later) == head - after and self._proofs.get(after, proof) == proof
        if self._changes_told != self._time.changes:
            # By this machine's clock, all data returned before expires at another time.
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
