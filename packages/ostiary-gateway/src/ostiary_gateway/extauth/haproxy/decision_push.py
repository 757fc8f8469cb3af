"""Decisions in the carrier: HAProxy keeps what the gateway has allowed, and asks about the rest.

    key               under which HAProxy looks a request up
    held              what this worker has put into HAProxy's map: bounded, by user and in all
    commands          the changes to the map that wait to be sent, as text of HAProxy's runtime socket
    runtime_socket    sends them
    pusher            puts decisions in, takes them out, and renews the lease on which all of them depend

A decision in the map is good only while the lease of the worker that put it there is. The worker renews that lease
while it knows of every revocation, and never past the moment until which it does: when the gateway stops, hangs, or
cannot ask its store, HAProxy asks again within seconds, and gets no answer or a 503.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary.core.clock import Clock
from ostiary.core.scopes import Delegation
from ostiary.model import RequestInfo
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.token_cache import CachedToken, TokenCache
from ostiary_gateway.authorization.cached_decision import CachedDecision
from ostiary_gateway.config.extauth import CarriedDecisions
from ostiary_gateway.extauth.haproxy.handler import AskedBySpoe
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.observability.repeated_log import RepeatedLog
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.engine import Engine

# The changes to HAProxy's maps that wait to be sent, as commands of its runtime socket. Pure.
#
# Used by the pusher. What is taken out goes before what is put in. A key that no longer works, because its lease or its
# time is over, only takes memory: such keys are taken out a few at a time, since HAProxy looks through its whole map
# for each.
#
# Every word of a command is made of characters that mean nothing else to HAProxy; `_WORD` makes sure of it.

# HAProxy reads a line into one buffer, of 16 KiB unless it is told otherwise.
LINE_BYTES = 12 * 1024
LONGEST_PASS = 8 * 1024
USELESS_AT_ONCE = 20
_WORD = re.compile(r"[A-Za-z0-9_.~%,|/-]+")
# What HAProxy says of a command that changed nothing, and need not have.
_HARMLESS = frozenset(("", "Key not found."))
NOT_FOUND = "entry not found."


class RuntimeRefusal(Exception):
    """HAProxy did not do what it was told. The message is its first line."""


class PendingCommands:
    """Those of one worker and door."""

    def __init__(self, decisions: str, leases: str) -> None:
        self._decisions, self._leases = decisions, leases
        self._adds: dict[str, str] = {}
        self._deletes: dict[str, None] = {}
        self._useless: dict[str, None] = {}
        self._ended_leases: list[str] = []

    @property
    def urgent(self) -> bool:
        """Whether there is something to send now."""
        return bool(self._adds or self._deletes or self._ended_leases)

    @property
    def useless(self) -> int:
        return len(self._useless)

    def add(self, key: str, text: str, *, replaces: bool) -> None:
        if replaces or key in self._useless or key in self._deletes:
            self._useless.pop(key, None)
            self._deletes[key] = None
        self._adds[key] = text

    def delete(self, keys: Iterable[str]) -> None:
        """Take them out at once."""
        for key in keys:
            self._adds.pop(key, None)
            self._useless.pop(key, None)
            self._deletes[key] = None

    def sweep(self, keys: Iterable[str]) -> None:
        """Take them out some time: they are good for nothing already."""
        for key in keys:
            # One that has not been sent never needs to be taken out.
            if self._adds.pop(key, None) is None or key in self._deletes:
                self._useless[key] = None

    def end_lease(self, lease: str) -> None:
        """Whatever depends on *lease* is no longer good. So all that waits for it need not be sent."""
        self._ended_leases.append(lease)
        self._adds.clear()
        self._useless |= self._deletes
        self._deletes.clear()

    def take(self, *, with_useless: bool) -> list[str]:
        """Commands for one line, the most urgent first."""
        commands = [f"del map {self._leases} {lease}" for lease in self._ended_leases]
        self._ended_leases.clear()
        size = sum(map(len, commands))
        for key in list(self._deletes):
            if size > LINE_BYTES:
                return commands
            del self._deletes[key]
            commands.append(command := f"del map {self._decisions} {key}")
            size += len(command)
        for key, text in list(self._adds.items()):
            command = f"add map {self._decisions} {key} {text}"
            if size + len(command) > LINE_BYTES:
                return commands
            del self._adds[key]
            commands.append(command)
            size += len(command)
        if with_useless:
            commands += [f"del map {self._decisions} {key}" for key in self._take_useless()]
        return commands

    def _take_useless(self) -> list[str]:
        keys = list(self._useless)[:USELESS_AT_ONCE]
        for key in keys:
            del self._useless[key]
        return keys


def line(commands: Sequence[str]) -> bytes:
    """All *commands* as one line."""
    for command in commands:
        if not all(map(_WORD.fullmatch, command.split(" "))):
            raise ValueError("a command has a word that could mean something else")
    return (";".join(commands) + "\n").encode("ascii")


def check_output(output: bytes) -> bool:
    """Whether the first command has found its entry; raises `RuntimeRefusal` if one was refused."""
    lines = output.decode("ascii", "replace").splitlines()
    for text in lines:
        if text not in _HARMLESS and text != NOT_FOUND:
            raise RuntimeRefusal(text[:100])
    return NOT_FOUND not in lines


# What this worker has put into HAProxy's map. Bounded in entries and bytes, for each user and in all.
#
# Used by the pusher. One user's decisions evict only that user's. Whatever leaves this table must leave the map, too:
# `take_dropped` tells the keys. A token whose decisions are here is followed (`TokenCache.follow`), so that its
# revocation is noticed even if the token itself is no longer kept.

HELD_BYTES = 32 * 1024 * 1024
# One user has at most this part of all entries, and of all bytes.
USERS_SHARE = 10
_FIXED_BYTES = 1200


@dataclass(slots=True)
class HeldDecision:
    """One decision in the map. `required` is what the policy was asked, and `ruling` what it said.

    `expires_at` is in Unix time, and `pushed_at` on the monotonic clock.
    """

    token: CachedToken
    upstream: str
    required: tuple[RequestInfo, ...]
    delegation: Delegation | None
    ruling: CachedDecision
    expires_at: int
    pushed_at: float


class _Follower:
    """Stands for the decisions of one token: it is cut when the token ends."""

    __slots__ = ("_on_end", "keys")

    def __init__(self, on_end: Callable[[set[str]], None]) -> None:
        self.keys: set[str] = set()
        self._on_end = on_end

    def cut(self) -> None:
        self._on_end(self.keys)


class HeldDecisions(BoundedByOwner[str, HeldDecision]):
    """Those of one worker and door. *on_end* is called with the keys of a token that was revoked."""

    def __init__(self, in_use: TokenCache, entries: int, on_end: Callable[[set[str]], None]) -> None:
        share = max(1, entries // USERS_SHARE)
        super().__init__(HELD_BYTES, HELD_BYTES // USERS_SHARE, entries=entries, share=share)
        self._in_use = in_use
        self._on_end = on_end
        self._followers: dict[CachedToken, _Follower] = {}
        self._dropped: list[str] = []

    def hold(self, key: str, held: HeldDecision, size: int) -> bool:
        """Hold a decision whose text has so many bytes; False if there is no room for it."""
        token = held.token
        if not self.keep(key, held, owner=token.user.username, size=_FIXED_BYTES + 2 * size):
            return False
        follower = self._followers.get(token)
        if follower is None:
            follower = self._followers[token] = _Follower(self._on_end)
            self._in_use.follow(token, follower)
        follower.keys.add(key)
        return True

    def forget(self, key: str) -> None:
        held = self.get(key)
        if held is None:
            return
        super().forget(key)
        self._dropped.append(key)
        follower = self._followers.get(held.token)
        if follower is not None:
            follower.keys.discard(key)
            if not follower.keys:
                self._in_use.unfollow(held.token, self._followers.pop(held.token))

    def take_dropped(self) -> list[str]:
        """The keys that have left since the last time."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def forget_all(self) -> None:
        """All of them; `take_dropped` tells them as well."""
        self._dropped += self
        for token, follower in self._followers.items():
            self._in_use.unfollow(token, follower)
        self._followers.clear()
        self.clear()


# Sends commands to HAProxy's runtime socket (``stats socket``), and reads what it says.
#
# Called by the pusher. One connection for each line: so nothing is left open when HAProxy is reloaded, and the next
# line reaches the process that has taken over.

SECONDS = 2.0
LISTING_SECONDS = 30.0
MOST_OUTPUT = 64 * 1024


class RuntimeSocket:
    """The socket of one HAProxy."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    async def send(self, line: bytes) -> bytes:
        """What HAProxy says to *line*; raises `OSError`, also if it takes too long."""
        async with asyncio.timeout(SECONDS), self._connect() as (reader, writer):
            writer.write(line)
            output = b""
            while data := await reader.read(MOST_OUTPUT):
                output += data
                if len(output) > MOST_OUTPUT:
                    raise OSError(0, "HAProxy says more than was asked for")
            return output

    async def entries(self, name: str) -> AsyncIterator[tuple[str, str]]:
        """The keys of the map *name* with their texts; raises `OSError`."""
        async with asyncio.timeout(LISTING_SECONDS), self._connect() as (reader, writer):
            writer.write(f"show map {name}\n".encode("ascii"))
            while text := (await reader.readline()).decode("ascii", "replace"):
                # An address, the key and the text.
                words = text.split()
                if len(words) == 3:
                    yield words[1], words[2]

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=MOST_OUTPUT)
        try:
            yield reader, writer
        finally:
            writer.close()


# Puts decisions into HAProxy's map, takes them out, and renews the lease on which all of them depend.
#
#     allowed by the engine -> offer -> add map                 the next equal request is not asked about
#     token revoked         -> del map, at once
#     policy changed, many revoked at once                      -> another lease: all decisions of this worker are void
#     every second          -> set map lease <until>            only while all revocations are known to be in force here
#
# Run by the app in the background, one for each door. It never waits for HAProxy while a request waits for it. When
# something cannot be sent, the lease is not renewed any more, so what could not be taken out is void when it ends; the
# worker begins again with another lease, and nothing is lost but hits.

log = logging.getLogger("ostiary.gateway")

# How long a lease is good; less if revocations are not confirmed for so long. HAProxy believes no longer one.
LEASE_SECONDS = 5
RENEWAL_SECONDS = 1.0
TICK_SECONDS = 0.1
RETRY_SECONDS = 1.0
# So many are taken out one by one; for more, all decisions of the worker are made void by one command.
MOST_DELETES = 64
# An equal question that comes so soon was asked before HAProxy had the decision.
UNDERWAY_SECONDS = 0.5
PUSHED, REVOKED, FAILED = "pushed", "revoked", "failed"


@dataclass(frozen=True, slots=True)
class CarrierMaps:
    """The names of HAProxy's two maps. Both are read from an empty file; the second is another name of the first."""

    decisions: str
    leases: str

    @classmethod
    def of(cls, file: str) -> CarrierMaps:
        folder, _, name = file.rpartition("/")
        return cls(file, f"{folder}/./{name}")


class DecisionPusher:
    """Those of one worker and door. *engines* are those of the door's upstreams, by name."""

    def __init__(
        self,
        door: str,
        settings: CarriedDecisions,
        authenticator: TokenAuthenticator,
        generation: Callable[[], int],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._door = door
        self._socket = RuntimeSocket(settings.socket)
        self._maps = CarrierMaps.of(settings.map)
        self._lifetime = settings.lifetime.total_seconds()
        self._entries = settings.entries
        self._feed = authenticator.feed
        # What HAProxy has of this worker.
        self.held = HeldDecisions(authenticator.in_use, settings.entries, self._revoke)
        self._generation = generation
        self._metrics = metrics
        self._clock = clock
        self._log = RepeatedLog(log, clock)
        self._pending = PendingCommands(self._maps.decisions, self._maps.leases)
        self._wake = asyncio.Event()
        self._renew_at = float("-inf")
        self._seen_generation = 0
        # The name of the lease; empty while there is none, and nothing can be pushed.
        self._lease = ""
        self._must_add_lease = False
        self._old_leases: list[str] = []
        self.engines: Mapping[str, Engine] = {}

    # --- the engine calls these ---

    def offer(self, ctx: RequestContext, exchange: AskedBySpoe) -> None:
        """An allowed request: tell HAProxy, unless each request like it must be asked about."""
        plan, token = ctx.plan, ctx.token
        if not self._lease or not plan.at_once or plan.actor is not None or plan.upstream is None:
            return
        if token.revoked or len(plan.identity) > LONGEST_PASS or self._pending.useless > self._entries:
            return
        if not plan.ruling.generation == self._generation() == self._seen_generation:
            # The policy has changed since it was asked: under the new lease this decision would outlive the change.
            return
        key, now = exchange.key, self._clock.monotonic()
        held = self.held.get(key)
        if held is not None and now < held.pushed_at + UNDERWAY_SECONDS:
            return
        wall = self._clock.now().timestamp()
        expires_at = int(min(wall + self._lifetime, token.expires_at.timestamp()))
        new = HeldDecision(
            token, plan.upstream.name, plan.required, plan.delegation, plan.ruling, expires_at, pushed_at=now
        )
        replaces = exchange.replaces or held is not None
        has_room = self.held.hold(key, new, len(plan.identity) + len(exchange.request.target))
        # What made room for it is still good to HAProxy, and nobody follows its token any more: it must go at once.
        self._pending.delete(dropped for dropped in self.held.take_dropped() if dropped != key)
        if not has_room:
            self._wake.set()
            return
        text = f"{expires_at}|{self._lease}|{plan.identity.decode('ascii')}"
        self._pending.add(key, text, replaces=replaces)
        self._metrics.door_decisions.inc(self._door, PUSHED)
        self._wake.set()

    def _revoke(self, keys: set[str]) -> None:
        """The token of these has ended."""
        self._metrics.door_decisions.inc(self._door, REVOKED)
        if len(keys) > MOST_DELETES:
            self._void_all()
        else:
            for key in list(keys):
                self.held.forget(key)
            self._pending.delete(self.held.take_dropped())
        self._wake.set()

    # --- the app runs these ---

    async def run(self) -> None:
        """Push as long as the configuration is at work; then nothing that was pushed is good any more."""
        try:
            while True:
                try:
                    await self._open()
                    await self._push()
                except (OSError, RuntimeRefusal, ValueError) as error:
                    self._fail(error)
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self._close()

    async def _open(self) -> None:
        """Begin with a lease of a new name, and take out what others have left behind."""
        now = self._clock.now().timestamp()
        live, over = set(), []
        async for lease, until in self._socket.entries(self._maps.leases):
            if until.isdecimal() and int(until) > now and lease not in self._old_leases:
                live.add(lease)
            else:
                over.append(lease)
        for lease in over:
            self._pending.end_lease(lease)
        self._old_leases.clear()
        async for key, text in self._socket.entries(self._maps.decisions):
            if text.split("|")[1:2] and text.split("|")[1] not in live:
                self._pending.sweep((key,))
        self._begin_lease()

    async def _push(self) -> None:
        while True:
            await self._flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            if self._generation() != self._seen_generation:
                self._void_all()
            elif self._clock.monotonic() >= self._renew_at:
                self._confirm()

    async def _close(self) -> None:
        lease, self._lease = self._lease, ""
        self.held.forget_all()
        if lease:
            with suppress(OSError, RuntimeRefusal):
                await self._socket.send(line([f"del map {self._maps.leases} {lease}"]))

    # --- inside ---

    def _begin_lease(self) -> None:
        self._lease, self._must_add_lease = secrets.token_hex(6), True
        self._renew_at = float("-inf")
        self._seen_generation = self._generation()

    def _void_all(self) -> None:
        """Everything that this worker has pushed is void from now on."""
        if self._lease:
            self._pending.end_lease(self._lease)
        self.held.forget_all()
        self._pending.sweep(self.held.take_dropped())
        self._begin_lease()

    def _confirm(self) -> None:
        """Take out what has expired, and what the policy no longer says."""
        now, wall = self._clock.monotonic(), self._clock.now().timestamp()
        for key, held in list(self.held.items()):
            if held.expires_at <= wall:
                self.held.forget(key)
            elif held.ruling.until <= now and not self._renew(held):
                self.held.forget(key)
                self._pending.delete((key,))
        self._pending.sweep(self.held.take_dropped())

    def _renew(self, held: HeldDecision) -> bool:
        """Whether the policy says the same as before. If it cannot say at once, HAProxy has to ask again."""
        renewed = self.engines[held.upstream].decide_again(held.token, held.required, held.delegation)
        if renewed is None or renewed != held.ruling:
            return False
        held.ruling = renewed
        return True

    async def _flush(self) -> None:
        """Send what waits, and renew the lease if it is time."""
        while True:
            now = self._clock.monotonic()
            is_due = now >= self._renew_at
            if not is_due and not self._pending.urgent:
                return
            commands = self._pending.take(with_useless=is_due)
            renewal = self._renewal(now)
            if renewal and (is_due or self._must_add_lease):
                commands.insert(0, renewal)
                self._must_add_lease = False
            self._renew_at = now + RENEWAL_SECONDS if is_due else self._renew_at
            if not commands:
                return
            if not check_output(await self._socket.send(line(commands))):
                raise RuntimeRefusal("it was restarted, and begins with empty maps")

    def _renewal(self, now: float) -> str:
        """The command that renews the lease; empty if revocations are not confirmed."""
        seconds = min(float(LEASE_SECONDS), self._feed.fresh_until - now)
        until = int(self._clock.now().timestamp() + seconds)
        if seconds < 1:
            return ""
        return f"{'add' if self._must_add_lease else 'set'} map {self._maps.leases} {self._lease} {until}"

    def _fail(self, error: Exception) -> None:
        self._metrics.door_decisions.inc(self._door, FAILED)
        cause = str(error) or type(error).__name__
        fields = {"door": self._door, "cause": error.strerror or cause if isinstance(error, OSError) else cause}
        self._log.write(logging.WARNING, "HAProxy cannot be told decisions, and asks about each request", fields)
        if self._lease:
            self._old_leases.append(self._lease)
        self._lease = ""
        self.held.forget_all()
        self.held.take_dropped()
        self._pending = PendingCommands(self._maps.decisions, self._maps.leases)
