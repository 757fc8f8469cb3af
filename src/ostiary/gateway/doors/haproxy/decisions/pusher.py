"""Puts decisions into HAProxy's map, takes them out, and renews the lease on which all of them depend.

    allowed by the engine -> offer -> add map                 the next equal request is not asked about
    token revoked         -> del map, at once
    policy changed, many revoked at once                      -> another lease: all decisions of this worker are void
    every second          -> set map lease <until>            only while all revocations are known to be in force here

Run by the app in the background, one for each door. It never waits for HAProxy while a request waits for it. When
something cannot be sent, the lease is not renewed any more, so what could not be taken out is void when it ends; the
worker begins again with another lease, and nothing is lost but hits.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ostiary.core.clock import Clock
from ostiary.gateway.authenticate.authenticator import TokenAuthenticator
from ostiary.gateway.config.settings import CarriedDecisions
from ostiary.gateway.doors.haproxy.answers import AskedBySpoe
from ostiary.gateway.doors.haproxy.decisions.commands import (
    LONGEST_PASS,
    PendingCommands,
    RuntimeRefusal,
    check_output,
    line,
)
from ostiary.gateway.doors.haproxy.decisions.held import HeldDecision, HeldDecisions
from ostiary.gateway.doors.haproxy.decisions.runtime_socket import RuntimeSocket
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.observe.repeated_log import RepeatedLog
from ostiary.gateway.request.engine import Engine
from ostiary.gateway.request.stages import Passage

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

    def offer(self, passage: Passage, exchange: AskedBySpoe) -> None:
        """An allowed request: tell HAProxy, unless each request like it must be asked about."""
        plan, token = passage.plan, passage.token
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
