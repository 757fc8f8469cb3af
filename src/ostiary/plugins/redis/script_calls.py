"""Runs the store's scripts on the primary, and keeps what each answer tells: the time, and the head of the log.

Called by the token store and by what else it keeps (records, notes, counts). A failure is raised as token-store-
unavailable, with its cause. Only what changes nothing is repeated, once, when a connection turns out to be dead.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from redis import exceptions

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ProviderError
from ostiary.plugins.redis.connection.dialer import Argument, Reply
from ostiary.plugins.redis.connection.failures import FAILURES, Unusable, unavailable
from ostiary.plugins.redis.connection.primary import Primary
from ostiary.plugins.redis.connection.server_checks import read_facts
from ostiary.plugins.redis.known_log import KnownLog
from ostiary.plugins.redis.scripts import script
from ostiary.plugins.redis.settings import RedisSettings
from ostiary.plugins.redis.times import Times

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
