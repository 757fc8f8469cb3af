"""Connections to the primary: look up, check, pool, and drop when it is no longer the primary.

    run -> a connection is free: the command is sent immediately, and the caller reads the response
        -> all are busy: it is queued; the next free connection sends all queued commands together

    READONLY, a lost connection, a timeout -> all connections are dropped -> the next call looks up the primary

Nothing is retried here.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from redis.crc import key_slot
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from ostiary_gateway.stores.redis.connection import (
    FAILURES,
    MOVED_AWAY,
    Argument,
    Dialer,
    OpenConnection,
    RedisAccount,
    Reply,
    Unusable,
    ask,
    has_moved_away,
)
from ostiary_gateway.stores.redis.settings import REDIS_PORT, SENTINEL_PORT, RedisSettings, split_address

# Server discovery: a fixed address, the server that Sentinels name, or the cluster node with the slot of the keys.

# One of several servers that does not respond must leave time for the others.
SHARE_OF_TIMEOUT = 0.4


class Servers:
    """Looks up the primary; *tag* is the hash tag of all keys."""

    def __init__(self, settings: RedisSettings, dialer: Dialer, tag: str) -> None:
        self._settings, self._dialer = settings, dialer
        self._slot = key_slot(tag.encode())
        self._account = RedisAccount(settings.username, settings.password_file)
        self._preferred = 0

    @property
    def description(self) -> str:
        """The configured location, for errors."""
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
        """Return the first host that responds, and its response. The last successful one is tried first."""
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


# Server checks, by its ``INFO``.

log = logging.getLogger("ostiary.redis")


def read_facts(info: bytes) -> dict[str, str]:
    lines = info.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


class ServerChecks:
    """Checks whether a server may store sessions. Each warning is logged once."""

    def __init__(self, settings: RedisSettings, description: str) -> None:
        self._settings, self._description = settings, description
        self._warned: set[str] = set()

    def judge(self, info: bytes) -> None:
        """Raise if the server must not be used."""
        facts = read_facts(info)
        if facts.get("role") != "master":
            raise ReadOnlyError("the server is a replica")
        policy = facts.get("maxmemory_policy", "unknown")
        if policy != "noeviction":
            raise Unusable(
                f"Redis would drop sessions and revocations when its memory is full: its maxmemory-policy is {policy}",
                "set maxmemory-policy to noeviction in the configuration of Redis",
            )
        for text in self.shortcomings(facts):
            if text not in self._warned:
                self._warned.add(text)
                log.warning(text, extra={"store": self._description})

    def shortcomings(self, facts: Mapping[str, str]) -> list[str]:
        """Return warnings for the operator about a server that can be used."""
        warnings = []
        if facts.get("aof_enabled") != "1":
            warnings.append("Redis has no append-only file: sessions and revocations are lost when it restarts")
        if int(facts.get("connected_slaves", "0")) < self._settings.wait_replicas:
            warnings.append("Redis has fewer replicas than waitReplicas: nobody can sign in or out")
        return warnings


# A connection that was idle for longer is checked before it is used: the server may have closed it.
IDLE_SECONDS = 1.0
# Maximum number of queued commands that are sent together.
BATCH = 64
_NO_REPLICAS = "bring the replicas of Redis back, or lower waitReplicas"
# A write for the replicas to confirm. It must succeed even if the memory is full, so the first command needs none.
_WRITE = "redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000)"


@dataclass(frozen=True, slots=True)
class _Job:
    command: Sequence[Argument]
    replicated: bool
    result: asyncio.Future[Reply]

    def fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def finish(self, reply: Reply) -> None:
        if not self.result.done():
            self.result.set_result(reply)


class Primary:
    """The connections of one event loop. *tag* is one of our keys; `on_drop` is called whenever they are dropped."""

    def __init__(self, settings: RedisSettings, *, tag: str) -> None:
        self._settings, self._tag = settings, tag
        self._dialer = Dialer(settings.tls, settings.database)
        self._account = RedisAccount(settings.username, settings.password_file)
        self._servers = Servers(settings, self._dialer, tag)
        self._checks = ServerChecks(settings, self._servers.description)
        self.shortcomings = self._checks.shortcomings
        self._locating = asyncio.Lock()
        self._address: tuple[str, int] | None = None
        self._free: list[tuple[OpenConnection, float]] = []
        self._busy = 0
        self._waiting: deque[_Job] = deque()
        # Incremented whenever all connections are dropped; an older one is closed when it is returned.
        self._generation = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_drop: Callable[[], None] = lambda: None

    @property
    def description(self) -> str:
        return self._servers.description

    async def run(self, command: Sequence[Argument], *, replicated: bool = False) -> Reply:
        """Return the response. With *replicated*, `waitReplicas` replicas have received what the command wrote."""
        job = _Job(command, replicated and self._settings.wait_replicas > 0, asyncio.get_running_loop().create_future())
        if self._busy < self._settings.connections:
            self._busy += 1
            try:
                await self._serve([job])
            finally:
                self._busy -= 1
                self._serve_waiting()
        else:
            self._waiting.append(job)
        return await job.result

    def _serve_waiting(self) -> None:
        if self._waiting and self._busy < self._settings.connections:
            self._busy += 1
            self._start(self._serve_batches())

    async def _serve_batches(self) -> None:
        try:
            while self._waiting:
                jobs = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                # A caller that was cancelled wants nothing written.
                if batch := [job for job in jobs if not job.result.done()]:
                    await self._serve(batch)
        finally:
            self._busy -= 1

    async def _serve(self, batch: Sequence[_Job]) -> None:
        """Set the result or the error of each job."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._exchange_on_connection(batch)
        except FAILURES as error:
            for job in batch:
                job.fail(error)
            if has_moved_away(error):
                self.drop()
            if isinstance(error, TimeoutError):
                # Queued jobs would only wait as long again.
                while self._waiting:
                    self._waiting.popleft().fail(error)
        except asyncio.CancelledError:
            for job in batch:
                job.fail(ConnectionLost("the connection was given up"))
                # The caller may be gone; retrieve the exception, or asyncio logs it as never retrieved.
                job.result.exception()
            raise

    async def _exchange_on_connection(self, batch: Sequence[_Job]) -> None:
        connection, generation = await self._take()
        in_order = False
        try:
            await self._exchange(connection, batch)
            in_order = True
        finally:
            if in_order and generation == self._generation:
                self._free.append((connection, time.monotonic()))
            else:
                await connection.disconnect(nowait=True)

    async def _exchange(self, connection: OpenConnection, batch: Sequence[_Job]) -> None:
        commands = [job.command for job in batch]
        needed = self._settings.wait_replicas if any(job.replicated for job in batch) else 0
        if needed:
            commands.append(("WAIT", needed, int(self._settings.wait_timeout * 1000)))
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        unconfirmed = []
        moved_away = False
        for job in batch:
            try:
                reply = await connection.read_response()
            except ResponseError as error:
                moved_away |= has_moved_away(error)
                job.fail(error)
                continue
            if job.replicated:
                unconfirmed.append((job, reply))
            else:
                job.finish(reply)
        if needed:
            moved_away |= not _confirm(unconfirmed, await connection.read_response(), needed)
        if moved_away:
            self.drop()

    # Connections.

    async def _take(self) -> tuple[OpenConnection, int]:
        while self._free:
            connection, used_at = self._free.pop()
            if time.monotonic() - used_at < IDLE_SECONDS:
                return connection, self._generation
            try:
                await ask(connection, ("PING",))
            except MOVED_AWAY:
                await connection.disconnect(nowait=True)
            else:
                return connection, self._generation
        generation = self._generation
        return await self.open(), generation

    async def open(self) -> OpenConnection:
        """Open a connection to the primary that is not pooled."""
        async with asyncio.timeout(self._settings.timeout):
            address = await self._locate()
            return await self._dialer.open(*address, self._account)

    async def _locate(self) -> tuple[str, int]:
        async with self._locating:
            if self._address is None:
                address = await self._servers.find_primary()
                connection = await self._dialer.open(*address, self._account)
                try:
                    (facts,) = await ask(connection, ("INFO",))
                    self._checks.judge(facts)
                    await self._confirm_primary(connection)
                finally:
                    await connection.disconnect(nowait=True)
                self._address = address
            return self._address

    async def _confirm_primary(self, connection: OpenConnection) -> None:
        """Check with a replicated write that this is the primary.

        An old primary that comes back reports itself as one until a Sentinel demotes it, but has no replicas.
        """
        needed = self._settings.wait_replicas
        if not needed:
            return
        write = ("EVAL", _WRITE, 1, self._tag, secrets.token_hex(8))
        _, replicas = await ask(connection, write, ("WAIT", needed, int(self._settings.wait_timeout * 1000)))
        if replicas < needed:
            raise Unusable(
                f"only {replicas} of {needed} replicas have confirmed that this is the primary", _NO_REPLICAS
            )

    async def recheck(self) -> None:
        """Check again whether the server may be used: its configuration can change while it runs."""
        facts = await self.run(("INFO",))
        try:
            self._checks.judge(facts)
        except FAILURES:
            self.drop()
            raise
        await self._compare_address()

    async def _compare_address(self) -> None:
        """Compare the address with the Sentinels': a cut-off primary still responds, but may have been replaced."""
        address = self._address
        # If the Sentinels are unavailable, the current primary stays in use.
        with suppress(*FAILURES):
            async with asyncio.timeout(self._settings.timeout):
                if await self._servers.find_primary() != address and self._address == address:
                    self.drop()

    def drop(self) -> None:
        """Drop all connections; the next call looks up the primary again."""
        self._address = None
        self._generation += 1
        free, self._free = self._free, []
        for connection, _ in free:
            self._start(_close(connection))
        self.on_drop()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self.drop()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _confirm(unconfirmed: Sequence[tuple[_Job, Reply]], replicas: int, needed: int) -> bool:
    for job, reply in unconfirmed:
        if replicas >= needed:
            job.finish(reply)
        else:
            job.fail(
                Unusable(
                    f"only {replicas} of {needed} replicas have confirmed the change in time: it may be lost",
                    _NO_REPLICAS,
                )
            )
    return replicas >= needed


async def _close(connection: OpenConnection) -> None:
    with suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)
