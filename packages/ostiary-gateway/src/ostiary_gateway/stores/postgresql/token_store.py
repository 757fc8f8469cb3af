"""Token store in a PostgreSQL database: durable, shared by any number of replicas.

    store:
      type: postgresql
      hosts: [db-1.example.com, db-2.example.com]
      database: ostiary
      user: ostiary
      passwordFile: /run/secrets/database-password

    add, renew, revoke, ... -> one call of a function in the schema: one transaction, one round trip
    find                    -> one statement
    wait_for_revocations    -> woken by the database (``LISTEN``), or by polling

The database's clock decides expiry for all replicas. Acknowledged writes are committed. Whether they survive the loss
of the server depends on the database: a synchronous standby guarantees it.
"""

from __future__ import annotations

from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.extras import needing
from ostiary.core.yaml import ConfigSection
from ostiary_gateway.catalog import Context
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings

with needing("postgresql", purpose="the token store postgresql"):
    from ostiary_gateway.stores.postgresql.database import Database, Migrations
    from ostiary_gateway.stores.postgresql.replica_tables import ObjectTable, ReplicaTables
    from ostiary_gateway.stores.postgresql.revocation_log import RevocationLog
    from ostiary_gateway.stores.postgresql.sessions import SessionTables, SignInRecords
    from ostiary_gateway.stores.postgresql.store_part import DatabaseTime
    from ostiary_gateway.stores.postgresql.transfer import PostgresqlExamination, WholeStore


class PostgresqlTokenStore(
    SessionTables, RevocationLog, SignInRecords, ReplicaTables, ObjectTable, WholeStore, PostgresqlExamination
):
    """Implements `ostiary_gateway.interfaces.token_store.TokenStore`, and all optional capabilities of a token store.

    *clock* is this machine's. *database_clock* replaces the clock of the database, for tests that control it. Nothing
    is opened before the first call: first use it after a fork, not before.
    """

    shared_between_processes = True
    survives_restart = True

    def __init__(
        self,
        settings: PostgresqlSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        database_clock: Clock | None = None,
        migrations: Migrations | None = None,
    ) -> None:
        database, time = Database(settings, migrations=migrations), DatabaseTime(clock, database_clock)
        RevocationLog.__init__(self, database, time, clock)
        ReplicaTables.__init__(self, database, time)

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(PostgresqlSettings, fields, context.directory)
        # A clock other than the system's replaces the database's too.
        database_clock = None if context.clock is SYSTEM_CLOCK else context.clock
        return cls(settings, clock=context.clock, database_clock=database_clock)

    async def close(self) -> None:
        await self._close_log()
        await self._database.close()
