"""Base of the parts of the PostgreSQL token store: reads and changes with the time in each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from ostiary.core.clock import Clock
from ostiary_gateway.interfaces.token_store import Session, TokenRecord
from ostiary_gateway.stores.postgresql.database import Database, Row
from ostiary_gateway.stores.stored_session import (
    SESSION_KINDS,
    decode_session,
    encode_body,
    index_names,
    kind_number,
    micros,
    moment_of,
)

# Time. Expiry is decided by the database's clock, so that replicas whose clocks differ agree. A session or a token has
# times of this machine; in the database they are times of its clock.

SECOND = 1_000_000
# A smaller difference between the clocks is ignored: times are returned exactly as they were stored.
AGREEMENT = SECOND
# Minimum change of the offset: a slow response does not mean that a clock has changed.
CHANGE = SECOND // 2


class DatabaseTime:
    """Measures with every response by how much the database's clock is ahead of *clock*.

    *replacement* replaces the database's clock, for tests that control it.
    """

    def __init__(self, clock: Clock, replacement: Clock | None = None) -> None:
        self._clock = clock
        self._replacement = replacement
        self._offset = 0
        # The latest time of the store in any response.
        self.seen = 0
        # How often the offset has changed: times that were returned before are no longer right.
        self.changes = 0

    @property
    def override(self) -> int | None:
        """The time that the database must use; None for its own clock."""
        return None if self._replacement is None else micros(self._replacement.now())

    @property
    def machine(self) -> int:
        return micros(self._clock.now())

    @property
    def expected(self) -> int:
        """The expected time of the database's clock."""
        return self.machine + self._offset

    def note(self, clock: int, time: int | None, *, sent: int) -> None:
        """Measure with the database's clock in a response, read between *sent* and now on this machine's clock."""
        if time is not None:
            self.seen = max(self.seen, time)
        if self._replacement is not None:
            return
        earliest, latest = clock - self.machine, clock - sent
        if earliest > latest:
            # This machine's clock was set back meanwhile: use the next response.
            return
        measured = min(max(self._offset, earliest), latest)
        if abs(measured) <= AGREEMENT:
            measured = 0
        if abs(measured - self._offset) > CHANGE:
            self._offset = measured
            self.changes += 1

    # Conversion between this machine's and the database's clock.

    def to_database(self, moment: datetime) -> int:
        return micros(moment) + self._offset

    def to_machine(self, value: int) -> int:
        """Convert microseconds of the database's clock to this machine's."""
        return value - self._offset

    def moment(self, value: int) -> datetime:
        return moment_of(self.to_machine(value))


T = TypeVar("T")

# Timeout of calls that touch many rows.
LONG_SECONDS = 30.0
# The outcomes of the functions in the schema.
REFUSED, DONE, OTHER_CLOCK = 0, 1, 2
_ATTEMPTS = 3

# The time, in every statement that reads: $1 replaces the database's clock, $2 is the latest time that was seen here.
# The limit informs the planner that there is one row; it would expect hundreds, and compile the statement for them.
NOW = """WITH now AS MATERIALIZED (
    SELECT k.clock, greatest(k.clock + s.shift, s.latest, $2::bigint) AS time, s.shift,
        s.head, s.head_proof, s.forgotten, s.forgotten_proof
    FROM @schema@.state s CROSS JOIN (SELECT coalesce($1::bigint, @schema@.clock_micros()) AS clock) k LIMIT 1)"""
SESSION_COLUMNS = """s.id, s.username, s.created_at - now.shift AS created_at, s.expires_at - now.shift AS expires_at,
    s.body, s.sequence, s.kind AS session_kind, s.used_at - now.shift AS used_at"""


class StorePart:
    """The database of a store, and its time."""

    def __init__(self, database: Database, time: DatabaseTime) -> None:
        self._database = database
        self._time = time

    async def _read(
        self, statement: str, *arguments: object, repeatable: bool = True, seconds: float | None = None
    ) -> list[Row]:
        """Return the rows of a statement that begins with `NOW`, at least one; each has the columns clock and time."""
        time = self._time
        sent_at = time.machine
        rows = await self._database.fetch(
            f"{NOW} {statement}", time.override, time.seen, *arguments, repeatable=repeatable, seconds=seconds
        )
        if not rows:
            raise self._database.unavailable("the schema is damaged: the row of the table state is missing")
        time.note(rows[0]["clock"], rows[0]["time"], sent=sent_at)
        return rows

    async def _change(
        self,
        function: str,
        arguments: Callable[[], Sequence[object]],
        *,
        repeatable: bool = False,
        seconds: float | None = None,
    ) -> Row:
        """Call a function of the schema that changes something. *arguments* are computed again if a clock has changed.

        The function does nothing if the database's clock differs from the expected time: the times among the arguments
        would be wrong. The last attempt accepts the database's time.
        """
        time = self._time
        for attempt in range(1, _ATTEMPTS + 1):
            expected = time.expected if attempt < _ATTEMPTS else None
            parameters = [time.override, time.seen, expected, *arguments()]
            places = ", ".join(f"${number}" for number in range(1, len(parameters) + 1))
            sent_at = time.machine
            (row,) = await self._database.fetch(
                f"SELECT * FROM @schema@.{function}({places})",  # noqa: S608
                *parameters,
                repeatable=repeatable,
                seconds=seconds,
            )
            time.note(row["clock"], row["time"], sent=sent_at)
            if row["outcome"] != OTHER_CLOCK:
                break
        return row

    def _decode(self, decode: Callable[..., T], *values: object) -> T:
        try:
            return decode(*values)
        except (ValueError, TypeError, OverflowError, KeyError):
            # The decoder's exception would quote the row.
            cause = "a row cannot be understood"
        raise self._database.unavailable(cause)

    # Sessions as rows.

    def _session_arguments(self, session: Session, tokens: Sequence[TokenRecord]) -> list[object]:
        to_database = self._time.to_database
        return [
            session.id,
            session.user.username,
            to_database(session.created_at),
            to_database(session.expires_at),
            encode_body(session),
            index_names(session),
            SESSION_KINDS[session.kind],
            None if session.last_used_at is None else to_database(session.last_used_at),
            *self._token_arguments(tokens),
        ]

    def _token_arguments(self, tokens: Sequence[TokenRecord]) -> list[object]:
        to_database = self._time.to_database
        return [
            [token.digest for token in tokens],
            [kind_number(token) for token in tokens],
            [to_database(token.issued_at) for token in tokens],
            [to_database(token.expires_at) for token in tokens],
            [token.delegation for token in tokens],
        ]

    def _session_of(self, row: Row) -> Session:
        to_machine = self._time.to_machine
        return self._decode(
            lambda: decode_session(
                row["id"],
                row["username"],
                to_machine(row["created_at"]),
                to_machine(row["expires_at"]),
                row["body"],
                row["sequence"],
                row["session_kind"],
                None if row["used_at"] is None else to_machine(row["used_at"]),
            )
        )
