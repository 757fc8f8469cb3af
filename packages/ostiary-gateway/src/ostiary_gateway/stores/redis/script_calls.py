"""Run the store's Lua scripts on the primary, and track the server's time and the head of the log.

A failure is raised as token-store-unavailable, with its cause. Only calls that change nothing are retried, once, if a
connection turns out to be dead.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TypeVar

from redis import exceptions

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ProviderError
from ostiary_gateway.stores.redis.connection import FAILURES, Argument, Reply, Unusable, unavailable
from ostiary_gateway.stores.redis.primary import Primary, read_facts
from ostiary_gateway.stores.redis.rows import LogEntry
from ostiary_gateway.stores.redis.settings import RedisSettings
from ostiary_gateway.stores.stored_session import micros, moment_of

# Lua scripts. Each is one atomic operation. A script consists of the parts that its first line names, and its file in
# ``lua/``. The server identifies it by its digest.

_USES = "-- uses:"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    digest: str


@cache
def script(name: str) -> Script:
    body = _read(name)
    first, _, _ = body.partition("\n")
    assert first.startswith(_USES), f"{name}.lua does not say which parts it uses"
    parts = [_read(f"parts/{part}") for part in first.removeprefix(_USES).split()]
    source = "\n".join([*parts, body])
    # Redis identifies scripts by this digest; security does not depend on it.
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def _read(name: str) -> str:
    return files("ostiary_gateway.stores.redis").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")


# Detection of lost revocations. After a failover, the new primary may lack the latest revocations, and may assign their
# numbers again. Therefore every revocation has a random id. Each call passes the last number and id that this process
# knows; a script that finds something else returns ``diverged``. The process that detects it begins a new era, so that
# all others notice; each then restores the revocations that it knows and the server does not.

# Number of recent revocations that can be restored.
MOST_REMEMBERED = 10_000


class KnownLog:
    """The head of the revocation log as last seen by this process, and recent entries that it can restore."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._id = ""
        self._entries: dict[str, LogEntry] = {}

    @property
    def arguments(self) -> tuple[str, str]:
        """The last number and its id, as scripts take them."""
        return ("", " ") if self._number is None else (str(self._number), self._id)

    def note_head(self, number: int, head_id: str) -> None:
        self._number, self._id = number, head_id

    def remember(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            if entry.revocation is not None:
                self._entries[entry.id] = entry
        while len(self._entries) > MOST_REMEMBERED:
            del self._entries[next(iter(self._entries))]

    def entries(self) -> list[LogEntry]:
        """Return the entries in the order in which they were read."""
        return list(self._entries.values())


# Time. Expiry is decided by the server's clock, so that all replicas agree. Times are passed to a script by the
# server's clock, in microseconds. They are returned in the store's own time, which is ahead of that clock by `shift`:
# see ``lua/parts/state.lua``.

# A smaller difference between the clocks is ignored: it cannot be measured more exactly.
AGREEMENT = 1_000_000
# The offset in use changes only if it is wrong by more than this.
HYSTERESIS = 500_000
# The clock is not measured with responses that took longer.
LONGEST_ROUND_TRIP = 500_000

_EARLIEST = micros(datetime.min.replace(tzinfo=UTC))
_LATEST = micros(datetime.max.replace(tzinfo=UTC))


def nearest_moment(value: int) -> datetime:
    """Return the time, limited to the range of `datetime`."""
    return moment_of(min(max(value, _EARLIEST), _LATEST))


class Times:
    """Conversion between this machine's and the server's time.

    With *given*, the scripts use this machine's clock: for tests, which control it.
    """

    def __init__(self, clock: Clock, *, given: bool) -> None:
        self._clock, self._given = clock, given
        self.ahead = 0

    def now(self) -> int:
        return micros(self._clock.now())

    @property
    def argument(self) -> str:
        """The time that is passed to a script; empty if it uses the server's."""
        return str(self.now()) if self._given else ""

    def to_server(self, moment: datetime) -> int:
        return micros(moment) + self.ahead

    def from_store(self, value: int, shift: int) -> datetime:
        return nearest_moment(value - shift - self.ahead)

    def measure(self, server: int, before: int, after: int) -> bool:
        """Measure the server's time, read between two times of this machine; return whether the offset has changed."""
        if self._given or not 0 <= after - before <= LONGEST_ROUND_TRIP:
            return False
        measured = server - (before + after) // 2
        if abs(measured) <= AGREEMENT:
            measured = 0
        if abs(measured - self.ahead) <= HYSTERESIS:
            return False
        self.ahead = measured
        return True


# Number of revocations per call when lost ones are restored.
RESTORED_AT_ONCE = 100
# Another failover may happen meanwhile.
MENDING_ATTEMPTS = 3
# The connection was dead, or led to a server that is no longer the primary.
DEAD = (exceptions.ConnectionError, exceptions.ReadOnlyError, exceptions.MovedError, exceptions.ClusterDownError)
# The server has confirmed that it did nothing.
NOTHING_DONE = (exceptions.BusyLoadingError, exceptions.ReadOnlyError, exceptions.MovedError)
_NONCE_BYTES = 8

T = TypeVar("T")

log = logging.getLogger("ostiary.redis")


class Diverged(Exception):
    """The server lacks revocations that this process knows."""


@dataclass(frozen=True, slots=True)
class ScriptAnswer:
    """The result of a script, and the head of the log at that moment; its id includes the era.

    `time` converts the times in the value.
    """

    value: Reply
    head: int
    head_id: str
    now: int
    time: Callable[[int], datetime]


class ScriptCalls:
    """Calls of the store's scripts. Without *server_time*, *clock* decides expiry: for tests, which control it."""

    def __init__(self, settings: RedisSettings, *, clock: Clock = SYSTEM_CLOCK, server_time: bool = True) -> None:
        self._state = f"{{{settings.prefix}}}:state"
        self.timeout = settings.timeout
        self.primary = Primary(settings, tag=self.key("primary"))
        self.times = Times(clock, given=not server_time)
        self.log = KnownLog()
        # How often data that was returned became invalid: revocations were lost, so that numbers now mean something
        # else, or
        # the offset between the clocks has changed, and with it the times.
        self.upheavals = 0
        # The time of the clock that decides expiry, at the last response.
        self.clock_of_server = 0
        self._seen = 0
        self._failure: ProviderError | None = None

    def key(self, name: str) -> str:
        return self._state.removesuffix("state") + name

    def to_server(self, moment: datetime) -> int:
        return self.times.to_server(moment)

    async def read(self, name: str, *arguments: Argument) -> ScriptAnswer:
        """Run a script that changes nothing."""
        return await self._attempt(name, arguments, DEAD)

    async def look_up(self, name: str, *arguments: Argument) -> ScriptAnswer:
        """Run a script that looks up one item. Only the primary can confirm that there is none.

        A server that was replaced while it hung still responds, and lacks everything newer. Therefore a negative result
        is checked again with a write that replicas confirm, if `waitReplicas` is set.
        """
        answer = await self.read(name, 0, *arguments)
        if answer.value is not None:
            return answer
        return await self.write(name, 1, *arguments, confirmed=True, repeatable=True)

    async def write(
        self, name: str, *arguments: Argument, confirmed: bool = False, repeatable: bool = False
    ) -> ScriptAnswer:
        """Run a script that changes something. With *confirmed*, raise unless enough replicas have received it.

        *repeatable*: a second run changes nothing, so the call is retried after a lost connection.
        """
        return await self._attempt(name, arguments, DEAD if repeatable else NOTHING_DONE, confirmed=confirmed)

    async def follow(
        self, name: str, *arguments: Argument, confirmed: bool = False, repeatable: bool = False
    ) -> ScriptAnswer:
        """Like `write`, for a script that compares the log with this process's.

        If the server has lost revocations, they are restored first.
        """
        for _ in range(MENDING_ATTEMPTS):
            try:
                answer = await self.write(name, *arguments, confirmed=confirmed, repeatable=repeatable)
            except Diverged:
                await self._restore()
            else:
                self.log.note_head(answer.head, answer.head_id)
                return answer
        raise self.unavailable(Unusable("the log of revocations changes all the time"))

    async def recheck_server(self) -> None:
        """Raise if the server must not be used any more."""
        self._check_open()
        try:
            try:
                await self.primary.recheck()
            except DEAD:
                await self.primary.recheck()
        except FAILURES as error:
            raise self.unavailable(error) from None

    async def server_facts(self) -> dict[str, str]:
        """Return the server's ``INFO``."""
        return read_facts(await self._ask(("INFO",)))

    async def count_listeners(self) -> int:
        """Return how many processes wait for revocations; zero also if the user lacks the right to query that."""
        try:
            _, count = await self._ask(("PUBSUB", "NUMSUB", self.key("revoked")))
        except exceptions.NoPermissionError:
            return 0
        return int(count)

    async def _ask(self, command: tuple[Argument, ...]) -> Reply:
        self._check_open()
        try:
            return await self.primary.run(command)
        except exceptions.NoPermissionError:
            raise
        except FAILURES as error:
            raise self.unavailable(error) from None

    def understand(self, read: Callable[..., T], *row: object) -> T:
        """Decode a result with *read*. Invalid data is an outage, and is not quoted: something else wrote it."""
        with suppress(ValueError, TypeError, OverflowError, AttributeError):
            return read(*row)
        raise self.unavailable(Unusable("an entry cannot be understood: something else has written to the keys"))

    async def _attempt(
        self,
        name: str,
        arguments: tuple[Argument, ...],
        again_after: tuple[type[Exception], ...],
        *,
        confirmed: bool = False,
    ) -> ScriptAnswer:
        self._check_open()
        try:
            try:
                return await self._call(name, arguments, confirmed=confirmed)
            except again_after:
                return await self._call(name, arguments, confirmed=confirmed)
        except FAILURES as error:
            raise self.unavailable(error) from None

    async def _restore(self) -> None:
        self.upheavals += 1
        entries = self.log.entries()
        for start in range(0, max(len(entries), 1), RESTORED_AT_ONCE):
            arguments: list[Argument] = []
            for entry in entries[start : start + RESTORED_AT_ONCE]:
                arguments += [entry.number, entry.encoded]
            answer = await self.write("restore", *arguments, confirmed=True, repeatable=True)
        self.log.note_head(answer.head, answer.head_id)
        message = "Redis had lost revocations: those that are known here hold again"
        log.warning(message, extra={"store": self.primary.description})

    async def _call(self, name: str, arguments: tuple[Argument, ...], *, confirmed: bool = False) -> ScriptAnswer:
        called_script = script(name)
        number, head_id = self.log.arguments
        own = (self.times.argument, self._seen, number, head_id, secrets.token_hex(_NONCE_BYTES), *arguments)
        before = self.times.now()
        try:
            reply = await self.primary.run(
                ("EVALSHA", called_script.digest, 1, self._state, *own), replicated=confirmed
            )
        except exceptions.NoScriptError:
            reply = await self.primary.run(("EVAL", called_script.source, 1, self._state, *own), replicated=confirmed)
        return self._take_in(reply, before)

    def _take_in(self, reply: Reply, before: int) -> ScriptAnswer:
        status = reply[0]
        if status == b"diverged":
            raise Diverged
        if status == b"layout":
            raise Unusable(
                f"its data has the layout of another version of ostiary ({reply[1].decode(errors='replace')})",
                "use the version that wrote it, or another prefix",
            )
        _, clock, shift, now, head, head_id, value = reply
        self._seen = max(self._seen, now)
        self.clock_of_server = clock
        if self.times.measure(clock, before, self.times.now()):
            self.upheavals += 1
        return ScriptAnswer(value, head, head_id.decode(), now, lambda time: self.times.from_store(time, shift))

    # Errors and shutdown.

    def unavailable(self, error: BaseException) -> ProviderError:
        return unavailable(error, self.primary.description)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.again()

    async def close(self) -> None:
        self._failure = self.unavailable(Unusable("it is closed"))
        await self.primary.close()
