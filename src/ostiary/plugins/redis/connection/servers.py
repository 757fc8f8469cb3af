"""Where the primary is: a fixed address, the server that Sentinels name, or the node of a cluster with our slot.

Called by `primary` whenever it has no connection, or has lost it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis.crc import key_slot

from ostiary.plugins.redis.connection.dialer import Argument, Dialer, RedisAccount, Reply, ask
from ostiary.plugins.redis.connection.failures import FAILURES, Unusable
from ostiary.plugins.redis.settings import REDIS_PORT, SENTINEL_PORT, RedisSettings, split_address

# One of several that does not answer must leave time for the others.
SHARE_OF_TIMEOUT = 0.4


class Servers:
    """Finds the primary; `tag` is the hash tag of all keys."""

    def __init__(self, settings: RedisSettings, dialer: Dialer, tag: str) -> None:
        self._settings, self._dialer = settings, dialer
        self._slot = key_slot(tag.encode())
        self._account = RedisAccount(settings.username, settings.password_file)
        self._preferred = 0

    @property
    def description(self) -> str:
        """For errors: where we were told to look."""
        settings = self._settings
        if settings.sentinel is not None:
            return f"{settings.sentinel.name} of the Sentinels {', '.join(settings.addresses)}"
        return ", ".join(settings.addresses)

    async def find_primary(self) -> tuple[str, int]:
        settings = self._settings
        if settings.sentinel is not None:
            return await self._ask_sentinels(settings.sentinel.name)
        if settings.cluster is not None:
            return await self._ask_cluster()
        return split_address(settings.address, REDIS_PORT)

    async def _ask_sentinels(self, name: str) -> tuple[str, int]:
        assert self._settings.sentinel is not None, "the caller looked"
        account = RedisAccount(self._settings.sentinel.username, self._settings.sentinel.password_file)
        command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        host, reply = await self._ask_any(command, account, SENTINEL_PORT)
        if reply is None:
            raise Unusable(f'the Sentinel {host} knows no primary called "{name}"', "correct sentinel.name")
        return reply[0].decode(), int(reply[1])

    async def _ask_cluster(self) -> tuple[str, int]:
        host, reply = await self._ask_any(("CLUSTER", "SLOTS"), self._account, REDIS_PORT)
        for first, last, primary, *_ in reply:
            if first <= self._slot <= last:
                # A node that does not know its own name leaves it empty.
                return (primary[0] or b"").decode() or host, int(primary[1])
        raise Unusable("no node of the cluster has the slot of the keys", "repair the cluster")

    async def _ask_any(
        self, command: Sequence[Argument], account: RedisAccount, default_port: int
    ) -> tuple[str, Reply]:
        """The host that answered first, and its answer. The one that answered last time is asked first."""
        addresses = self._settings.addresses
        failure: BaseException = Unusable("nobody to ask")
        for attempt in range(len(addresses)):
            index = (self._preferred + attempt) % len(addresses)
            host, port = split_address(addresses[index], default_port)
            try:
                async with asyncio.timeout(self._settings.timeout * SHARE_OF_TIMEOUT):
                    connection = await self._dialer.open(host, port, account, database=0)
                    try:
                        (reply,) = await ask(connection, command)
                    finally:
                        await connection.disconnect(nowait=True)
            except FAILURES as error:
                failure = error
                continue
            self._preferred = index
            return host, reply
        raise failure
