"""Runs the store's scripts on the primary, and keeps what each answer tells: the time, and the head of the log.

Called by the token store and by what else it keeps (records, notes, counts). A failure is raised as token-store-
unavailable, with its cause. Only what changes nothing is repeated, once, when a connection turns out to be dead.
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

# The Lua scripts of the store. Each is one change or one look, which nothing else comes between.
#
# A script is its file in ``lua/``, after the parts that its first line names. The server knows it by its digest.

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
    # Redis names scripts by this digest; nothing rests on it.
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def _read(name: str) -> str:
    return files("ostiary_gateway.stores.redis").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")


# What this process knows of the log of revocations, so that a server which has lost some is found out. Pure.
#
# After a failover the new primary may never have heard of the last revocations, and may give their numbers to others.
# So every revocation has a random id. We say with each call which number and id we know as the last; a script that
# finds something else there answers ``diverged``. Whoever finds it out begins another era, so that all others learn of
# it; each then writes back what it knows and the server does not.

# The latest so many can be revoked again.
MOST_REMEMBERED = 10_000


class KnownLog:
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
        """In the order in which they were learnt."""
        return list(self._entries.values())


# The server's clock and ours. What expires is judged by the server's, so that all replicas agree; pure.
#
# A time goes to a script as the server's clock would say it, in microseconds. It comes back in the store's own time,
# which is ahead of that clock by `shift`: see ``lua/parts/state.lua``.

# Clocks that agree within this are taken for one clock: measuring is not more exact.
AGREEMENT = 1_000_000
# The difference in use changes only if it is wrong by more than this.
HYSTERESIS = 500_000
# An answer that took longer tells too little about the clock.
LONGEST_ROUND_TRIP = 500_000

_EARLIEST = micros(datetime.min.replace(tzinfo=UTC))
_LATEST = micros(datetime.max.replace(tzinfo=UTC))


def nearest_moment(value: int) -> datetime:
    """The time; for one that no calendar has, the first or the last that it has."""
    return moment_of(min(max(value, _EARLIEST), _LATEST))


class Times:
    """With *given*, the scripts take the time from our clock: for tests, which hold it still."""

    def __init__(self, clock: Clock, *, given: bool) -> None:
        self._clock, self._given = clock, given
        self.ahead = 0

    def now(self) -> int:
        return micros(self._clock.now())

    @property
    def argument(self) -> str:
        """The time that a script is given; empty if it is to ask its server."""
        return str(self.now()) if self._given else ""

    def to_server(self, moment: datetime) -> int:
        return micros(moment) + self.ahead

    def from_store(self, value: int, shift: int) -> datetime:
        return nearest_moment(value - shift - self.ahead)

    def measure(self, server: int, before: int, after: int) -> bool:
        """Take note of the server's time, asked between two times of ours; whether the difference has changed."""
        if self._given or not 0 <= after - before <= LONGEST_ROUND_TRIP:
            return False
        measured = server - (before + after) // 2
        if abs(measured) <= AGREEMENT:
            measured = 0
        if abs(measured - self.ahead) <= HYSTERESIS:
            return False
        self.ahead = measured
        return True


# How many revocations are written back with one call after a failover has lost some.
RESTORED_AT_ONCE = 100
# Another failover may come in between.
MENDING_ATTEMPTS = 3
# The connection was dead, or led to a server that is no longer the primary.
DEAD = (exceptions.ConnectionError, exceptions.ReadOnlyError, exceptions.MovedError, exceptions.ClusterDownError)
# The server has said that it did nothing.
NOTHING_DONE = (exceptions.BusyLoadingError, exceptions.ReadOnlyError, exceptions.MovedError)
_NONCE_BYTES = 8

T = TypeVar("T")

log = logging.getLogger("ostiary.redis")


class Diverged(Exception):
    """The server does not know the revocations that we know."""


@dataclass(frozen=True, slots=True)
class ScriptAnswer:
    """What a script returns, and the head of the log at that moment; its id has the era in it.

    `time` reads the times of the value.
    """

    value: Reply
    head: int
    head_id: str
    now: int
    time: Callable[[int], datetime]


class ScriptCalls:
    """Without *server_time*, our *clock* says when something expires: for tests, which hold it still."""

    def __init__(self, settings: RedisSettings, *, clock: Clock = SYSTEM_CLOCK, server_time: bool = True) -> None:
        self._state = f"{{{settings.prefix}}}:state"
        self.timeout = settings.timeout
        self.primary = Primary(settings, tag=self.key("primary"))
        self.times = Times(clock, given=not server_time)
        self.log = KnownLog()
        # How often what we had given out became wrong: revocations were lost, so that numbers mean something else now;
        # or our clock and the server's are apart by something else than before, and so are times.
        self.upheavals = 0
        # What the clock said that judges expiry, at the last answer.
        self.clock_of_server = 0
        self._seen = 0
        self._failure: ProviderError | None = None

    def key(self, name: str) -> str:
        return self._state.removesuffix("state") + name

    def to_server(self, moment: datetime) -> int:
        return self.times.to_server(moment)

    async def read(self, name: str, *arguments: Argument) -> ScriptAnswer:
        """The answer of a script that changes nothing."""
        return await self._attempt(name, arguments, DEAD)

    async def look_up(self, name: str, *arguments: Argument) -> ScriptAnswer:
        """The answer of a script that looks for one thing. That there is none, only the primary can say.

        A server that was replaced while it hung goes on answering, and knows nothing of what came since. So a "no" is
        asked for once more, with something written that a replica confirms, where `waitReplicas` asks for that.
        """
        answer = await self.read(name, 0, *arguments)
        if answer.value is not None:
            return answer
        return await self.write(name, 1, *arguments, confirmed=True, repeatable=True)

    async def write(
        self, name: str, *arguments: Argument, confirmed: bool = False, repeatable: bool = False
    ) -> ScriptAnswer:
        """The answer of a script that changes something. With *confirmed*, only if enough replicas have it.

        *repeatable*: nothing is changed the second time, so a lost connection is no reason to give up.
        """
        return await self._attempt(name, arguments, DEAD if repeatable else NOTHING_DONE, confirmed=confirmed)

    async def follow(
        self, name: str, *arguments: Argument, confirmed: bool = False, repeatable: bool = False
    ) -> ScriptAnswer:
        """As `write`, for a script that compares the log with what we know of it.

        Where the server has lost some of it, that is mended first.
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
        """What the server says of itself."""
        return read_facts(await self._ask(("INFO",)))

    async def count_listeners(self) -> int:
        """How many processes wait for revocations; zero also if we may not ask that."""
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
        """What *read* makes of an answer. An entry that somebody else has written is an outage, and is not quoted."""
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

    # --- the end ---

    def unavailable(self, error: BaseException) -> ProviderError:
        return unavailable(error, self.primary.description)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.again()

    async def close(self) -> None:
        self._failure = self.unavailable(Unusable("it is closed"))
        await self.primary.close()
