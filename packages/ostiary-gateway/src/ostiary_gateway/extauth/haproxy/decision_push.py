"""Decision caching in HAProxy: pushes allowed decisions into HAProxy's map, so that only the rest needs queries.

A decision in the map is valid only as long as the lease of the worker that pushed it. The worker renews the lease while
its revocation feed is fresh, and never beyond that freshness. When the gateway stops, hangs, or cannot reach its store,
HAProxy sends queries again within seconds, and gets no response or a 503.
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

# Pending changes to HAProxy's maps, as commands of its runtime socket. Pure.

# HAProxy reads a line into one buffer, of 16 KiB by default.
LINE_BYTES = 12 * 1024
LONGEST_PASS = 8 * 1024
USELESS_AT_ONCE = 20
# Every word of a command matches this: characters without special meaning for HAProxy.
_WORD = re.compile(r"[A-Za-z0-9_.~%,|/-]+")
# Output of a command that changed nothing, which is not an error.
_HARMLESS = frozenset(("", "Key not found."))
NOT_FOUND = "entry not found."


class RuntimeRefusal(Exception):
    """HAProxy rejected a command. The message is the first line of its output."""


class PendingCommands:
    """The pending commands of one worker and endpoint.

    Deletions are sent before additions. A key that is no longer valid, because it or its lease has expired, only uses
    memory. Such keys are deleted a few at a time, since HAProxy searches its whole map for each.
    """

    def __init__(self, decisions: str, leases: str) -> None:
        self._decisions, self._leases = decisions, leases
        self._adds: dict[str, str] = {}
        self._deletes: dict[str, None] = {}
        self._useless: dict[str, None] = {}
        self._ended_leases: list[str] = []

    @property
    def urgent(self) -> bool:
        """Whether there are commands to send now."""
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
        """Delete the keys as soon as possible."""
        for key in keys:
            self._adds.pop(key, None)
            self._useless.pop(key, None)
            self._deletes[key] = None

    def sweep(self, keys: Iterable[str]) -> None:
        """Delete the keys eventually: they are no longer valid."""
        for key in keys:
            # A key that was not sent yet needs no deletion.
            if self._adds.pop(key, None) is None or key in self._deletes:
                self._useless[key] = None

    def end_lease(self, lease: str) -> None:
        """Delete *lease*. Everything that depends on it is invalid, so its pending commands need not be sent."""
        self._ended_leases.append(lease)
        self._adds.clear()
        self._useless |= self._deletes
        self._deletes.clear()

    def take(self, *, with_useless: bool) -> list[str]:
        """Return the commands for one line, the most urgent first."""
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
    """Return *commands* as one line. Raises `ValueError` for a word with special characters."""
    for command in commands:
        if not all(map(_WORD.fullmatch, command.split(" "))):
            raise ValueError("a command has a word that could mean something else")
    return (";".join(commands) + "\n").encode("ascii")


def check_output(output: bytes) -> bool:
    """Return whether the first command found its entry. Raises `RuntimeRefusal` if a command was rejected."""
    lines = output.decode("ascii", "replace").splitlines()
    for text in lines:
        if text not in _HARMLESS and text != NOT_FOUND:
            raise RuntimeRefusal(text[:100])
    return NOT_FOUND not in lines


# The decisions that this worker has pushed.

HELD_BYTES = 32 * 1024 * 1024
# One user may hold at most this fraction of all entries and bytes.
USERS_SHARE = 10
_FIXED_BYTES = 1200


@dataclass(slots=True)
class HeldDecision:
    """One decision in the map.

    `required` are the request attributes of the policy decision, and `ruling` is its outcome.

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
    """Registered for the decisions of one token; `cut` is called when the token ends."""

    __slots__ = ("_on_end", "keys")

    def __init__(self, on_end: Callable[[set[str]], None]) -> None:
        self.keys: set[str] = set()
        self._on_end = on_end

    def cut(self) -> None:
        self._on_end(self.keys)


class HeldDecisions(BoundedByOwner[str, HeldDecision]):
    """The pushed decisions of one worker and endpoint, bounded in entries and bytes, per user and in total.

    A user's decisions evict only that user's. Whatever leaves this table must leave the map too: `take_dropped` returns
    the keys. Tokens with decisions here are followed (`TokenCache.follow`), so that a revocation is noticed even if the
    token itself was evicted. *on_end* is called with the keys of a token that was revoked.
    """

    def __init__(self, in_use: TokenCache, entries: int, on_end: Callable[[set[str]], None]) -> None:
        share = max(1, entries // USERS_SHARE)
        super().__init__(HELD_BYTES, HELD_BYTES // USERS_SHARE, entries=entries, share=share)
        self._in_use = in_use
        self._on_end = on_end
        self._followers: dict[CachedToken, _Follower] = {}
        self._dropped: list[str] = []

    def hold(self, key: str, held: HeldDecision, size: int) -> bool:
        """Store a decision whose text has *size* bytes. Return False if there is no room."""
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
        """Return the keys removed since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def forget_all(self) -> None:
        """Remove all decisions. `take_dropped` returns their keys too."""
        self._dropped += self
        for token, follower in self._followers.items():
            self._in_use.unfollow(token, follower)
        self._followers.clear()
        self.clear()


# The client of HAProxy's runtime socket (``stats socket``).

SECONDS = 2.0
LISTING_SECONDS = 30.0
MOST_OUTPUT = 64 * 1024


class RuntimeSocket:
    """The runtime socket of one HAProxy.

    Each line uses its own connection: none stays open when HAProxy is reloaded, and the next line reaches the new
    process.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    async def send(self, line: bytes) -> bytes:
        """Return HAProxy's output for *line*. Raises `OSError`, also on a timeout."""
        async with asyncio.timeout(SECONDS), self._connect() as (reader, writer):
            writer.write(line)
            output = b""
            while data := await reader.read(MOST_OUTPUT):
                output += data
                if len(output) > MOST_OUTPUT:
                    raise OSError(0, "HAProxy says more than was asked for")
            return output

    async def entries(self, name: str) -> AsyncIterator[tuple[str, str]]:
        """Yield the keys and values of the map *name*. Raises `OSError`."""
        async with asyncio.timeout(LISTING_SECONDS), self._connect() as (reader, writer):
            writer.write(f"show map {name}\n".encode("ascii"))
            while text := (await reader.readline()).decode("ascii", "replace"):
                # Columns: address, key, value.
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


log = logging.getLogger("ostiary.gateway")

# Validity of a lease; less if revocations are not confirmed for as long. HAProxy rejects longer leases.
LEASE_SECONDS = 5
RENEWAL_SECONDS = 1.0
TICK_SECONDS = 0.1
RETRY_SECONDS = 1.0
# Up to this many decisions are deleted one by one. For more, one command invalidates all decisions of the worker.
MOST_DELETES = 64
# An identical query within this time was sent before HAProxy had received the decision.
UNDERWAY_SECONDS = 0.5
PUSHED, REVOKED, FAILED = "pushed", "revoked", "failed"


@dataclass(frozen=True, slots=True)
class CarrierMaps:
    """The names of HAProxy's two maps.

    Both are read from the same empty file; the second name is an alias of its path.
    """

    decisions: str
    leases: str

    @classmethod
    def of(cls, file: str) -> CarrierMaps:
        folder, _, name = file.rpartition("/")
        return cls(file, f"{folder}/./{name}")


class DecisionPusher:
    """Push, delete and renew the decisions of one worker and endpoint. *engines* are those of its upstreams, by name.

        allowed by the engine    offer -> add map      identical requests need no query
        token revoked            del map, immediately
        policy changed, or many tokens revoked         a new lease: all decisions of this worker are invalid
        every second             set map lease <until>, only while revocations are confirmed

    No request waits for HAProxy's runtime socket. If a command cannot be sent, the lease is no longer renewed, so
    decisions that could not be deleted expire with it. The worker then starts with a new lease, and only cache hits are
    lost.
    """

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
        # The decisions of this worker in HAProxy's map.
        self.held = HeldDecisions(authenticator.in_use, settings.entries, self._revoke)
        self._generation = generation
        self._metrics = metrics
        self._clock = clock
        self._log = RepeatedLog(log, clock)
        self._pending = PendingCommands(self._maps.decisions, self._maps.leases)
        self._wake = asyncio.Event()
        self._renew_at = float("-inf")
        self._seen_generation = 0
        # The name of the lease. While it is empty, nothing can be pushed.
        self._lease = ""
        self._must_add_lease = False
        self._old_leases: list[str] = []
        self.engines: Mapping[str, Engine] = {}

    # --- called by the engine ---

    def offer(self, ctx: RequestContext, exchange: AskedBySpoe) -> None:
        """Push the decision of an allowed request, unless each such request needs a query."""
        plan, token = ctx.plan, ctx.token
        if not self._lease or not plan.at_once or plan.actor is not None or plan.upstream is None:
            return
        if token.revoked or len(plan.identity) > LONGEST_PASS or self._pending.useless > self._entries:
            return
        if not plan.ruling.generation == self._generation() == self._seen_generation:
            # The policy changed after this decision: under the new lease the decision would outlive the change.
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
        # Evicted decisions are still valid for HAProxy, but their tokens are no longer followed: delete them
        # immediately.
        self._pending.delete(dropped for dropped in self.held.take_dropped() if dropped != key)
        if not has_room:
            self._wake.set()
            return
        text = f"{expires_at}|{self._lease}|{plan.identity.decode('ascii')}"
        self._pending.add(key, text, replaces=replaces)
        self._metrics.door_decisions.inc(self._door, PUSHED)
        self._wake.set()

    def _revoke(self, keys: set[str]) -> None:
        """Delete the decisions of a token that has ended."""
        self._metrics.door_decisions.inc(self._door, REVOKED)
        if len(keys) > MOST_DELETES:
            self._void_all()
        else:
            for key in list(keys):
                self.held.forget(key)
            self._pending.delete(self.held.take_dropped())
        self._wake.set()

    # --- run by the app ---

    async def run(self) -> None:
        """Push while the configuration is in use. At the end invalidate everything that was pushed."""
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
        """Start with a new lease, and delete what other leases have left behind."""
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

    # --- internals ---

    def _begin_lease(self) -> None:
        self._lease, self._must_add_lease = secrets.token_hex(6), True
        self._renew_at = float("-inf")
        self._seen_generation = self._generation()

    def _void_all(self) -> None:
        """Invalidate everything that this worker has pushed."""
        if self._lease:
            self._pending.end_lease(self._lease)
        self.held.forget_all()
        self._pending.sweep(self.held.take_dropped())
        self._begin_lease()

    def _confirm(self) -> None:
        """Delete expired decisions, and those that the policy no longer allows."""
        now, wall = self._clock.monotonic(), self._clock.now().timestamp()
        for key, held in list(self.held.items()):
            if held.expires_at <= wall:
                self.held.forget(key)
            elif held.ruling.until <= now and not self._renew(held):
                self.held.forget(key)
                self._pending.delete((key,))
        self._pending.sweep(self.held.take_dropped())

    def _renew(self, held: HeldDecision) -> bool:
        """Return whether the policy's decision is unchanged. If it needs to wait, HAProxy has to query again."""
        renewed = self.engines[held.upstream].decide_again(held.token, held.required, held.delegation)
        if renewed is None or renewed != held.ruling:
            return False
        held.ruling = renewed
        return True

    async def _flush(self) -> None:
        """Send the pending commands, and renew the lease if it is due."""
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
        """Return the command that renews the lease; empty if revocations are not confirmed."""
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
