"""A PostgreSQL primary with a synchronous standby, and the failover that an operator's tool (Patroni, say) would do.

    with postgresql_pair() as pair:
        pair.fail_over()        # the primary dies, the standby takes its place, and the dead one follows it

Both keep their addresses, so a client that knows both finds the one that can be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.postgresql import PostgresServer, running


class PostgresPair:
    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary, self.standby = primary, standby
        self.addresses = [f"{each.host}:{each.port}" for each in (primary, standby)]

    def fail_over(self) -> None:
        """Returns when both run again and commits wait for the standby."""
        self.primary.kill()
        self.promote()
        self.follow()

    def promote(self) -> None:
        """The standby becomes the primary, whatever the other one does."""
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def follow(self) -> None:
        """The other one, which does not run, becomes the standby; commits wait for it from then on."""
        self.primary.copy_to(self.standby)
        self.standby.start()
        self.primary.wait_for_standby(synchronous=True)


@contextmanager
def postgresql_pair() -> Iterator[PostgresPair]:
    with running() as primary, primary.standby(synchronous=True) as standby:
        yield PostgresPair(primary, standby)
