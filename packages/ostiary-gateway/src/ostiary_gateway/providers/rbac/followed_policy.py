"""The RBAC policy of a cluster: one index of four followed kinds, and its age.

The cluster's default roles are among those listed, and its controller has filled the aggregated roles, so nothing is
added here. A policy that was not confirmed for too long is not used: decisions then fail with an error, which is not
the same as a denial.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.upstream_capabilities import (
    FollowedFigures,
    NeededAccess,
    UpstreamFollower,
    UpstreamReader,
)
from ostiary_gateway.providers.rbac.followed_kind import (
    COULD_NOT_READ,
    SLICE,
    WATCH_SECONDS,
    ExpiredVersion,
    FollowedKind,
    Pauses,
    PolicyTooLarge,
)
from ostiary_gateway.providers.rbac.index import Index
from ostiary_gateway.providers.rbac.long_work import long_work
from ostiary_gateway.providers.rbac.policy import ObjectChange, RbacPolicy
from ostiary_gateway.providers.rbac.settings import FromSettings
from ostiary_gateway.settings.kinds import short_duration
from ostiary_gateway.wire.rbac import GROUP, Binding, Manifests, Role
from ostiary_gateway.wire.rbac_served import PLURALS, UnreadableAnswer

LEAST_WATCH_SECONDS = 10.0
# How often `load` lists again if a list expires or cannot be decoded.
ATTEMPTS = 3
NOT_READ = "its policy has not been read yet"
_STALE_REVISION = -1


class FollowedPolicy:
    """The policy of an upstream.

    Implements `ostiary_gateway.interfaces.upstream_capabilities.UpstreamFollower`.
    """

    def __init__(
        self,
        settings: FromSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        make_pauses: Callable[[], Pauses] = Pauses,
    ) -> None:
        self.upstream = settings.upstream
        self._settings = settings
        self._clock = clock
        self._max_stale = settings.max_stale.total_seconds()
        # The server must respond at least twice in that time, if only by accepting the next watch.
        watch_seconds = min(WATCH_SECONDS, max(LEAST_WATCH_SECONDS, self._max_stale / 2 - LEAST_WATCH_SECONDS))
        self._kinds = {
            kind: FollowedKind(
                kind,
                self,
                clock=clock,
                watch_seconds=watch_seconds,
                relist_seconds=settings.relist.total_seconds(),
                pauses=make_pauses(),
            )
            for kind in PLURALS
        }
        # None until all kinds were listed and their index was built.
        self._policy: RbacPolicy | None = None
        self._all_listed = asyncio.Event()
        # Changes received while it is built.
        self._changes_since: list[ObjectChange] = []
        # The oldest `heard_at` of all kinds.
        self._heard_at = -math.inf

    # --- what decisions use ---

    @property
    def index(self) -> Index:
        """The policy in force. Raises `ProviderError` if there is none, or if it is too old."""
        policy = self._policy
        if policy is None or self.age > self._max_stale:
            raise self._unavailable()
        return policy.index

    @property
    def revision(self) -> int:
        """Changes with the policy, and when it becomes too old, which invalidates cached decisions."""
        policy = self._policy
        if policy is None or self.age > self._max_stale:
            return _STALE_REVISION
        return policy.index.revision

    @property
    def age(self) -> float:
        """Seconds since the cluster last confirmed the policy."""
        return self._clock.monotonic() - self._heard_at

    # --- UpstreamFollower ---

    async def follow(self, reader: UpstreamReader) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._begin())
            for kind in self._kinds.values():
                group.create_task(kind.run(reader))

    async def load(self, reader: UpstreamReader) -> None:
        for kind in self._kinds.values():
            await self._list(kind, reader)
        await self._begin()

    async def probe(self, reader: UpstreamReader) -> str:
        try:
            for kind in self._kinds.values():
                await kind.may_watch(reader)
        except (ExpiredVersion, UnreadableAnswer) as error:
            raise ProviderError(COULD_NOT_READ, cause=f"its answer cannot be understood: {error}") from None
        return f"{', '.join(PLURALS.values())} of {self.upstream} can be listed and watched"

    def adopt(self, old: UpstreamFollower) -> bool:
        if not isinstance(old, FollowedPolicy) or old.upstream != self.upstream or old._policy is None:
            return False
        entries = sum(kind.entries for kind in old._kinds.values())
        if entries > self._settings.max_entries:
            return False
        for kind, followed in self._kinds.items():
            followed.adopt(old._kinds[kind])
        self._policy, self._heard_at = old._policy, old._heard_at
        return True

    def trouble(self) -> str:
        if self._policy is None:
            return NOT_READ
        if self.age > self._max_stale:
            return f"its policy is older than {short_duration(self._settings.max_stale)}"
        return ""

    def figures(self) -> FollowedFigures:
        kinds = self._kinds.values()
        return FollowedFigures(
            age=None if self._policy is None else self.age,
            objects=sum(len(kind.objects) for kind in kinds),
            lists=sum(kind.lists for kind in kinds),
            changes=sum(kind.changes for kind in kinds),
            unreadable=sum(kind.unreadable for kind in kinds),
        )

    def needs(self) -> NeededAccess:
        return NeededAccess(("list", "watch"), GROUP, tuple(PLURALS.values()))

    # --- KindOwner ---

    def take(self, changes: list[ObjectChange]) -> None:
        if self._policy is not None:
            self._policy.apply(changes)
        elif self._all_listed.is_set():
            self._changes_since += changes

    def check_room(self, kind: str, entries: int) -> None:
        others = sum(followed.entries for name, followed in self._kinds.items() if name != kind)
        if entries + others > self._settings.max_entries:
            raise PolicyTooLarge(
                COULD_NOT_READ,
                cause=f"it has more than {self._settings.max_entries} entries (from.maxEntries)",
                hint="set from.maxEntries higher if the gateway has the memory: about a kilobyte for each",
            )

    def confirmed(self) -> None:
        self._heard_at = min(kind.heard_at for kind in self._kinds.values())
        if self._heard_at > -math.inf:
            self._all_listed.set()

    # --- internals ---

    async def _begin(self) -> None:
        """Build the index when all kinds are listed. In a thread: a large policy takes a second."""
        await self._all_listed.wait()
        if self._policy is not None:
            return
        self._changes_since.clear()
        # Copied, because the kinds keep changing. Changes that arrive meanwhile are applied afterwards.
        objects = list[list[Role | Binding]]()
        for kind in self._kinds.values():
            for shard in kind.objects.shards:
                objects.append(list(shard.values()))
                await asyncio.sleep(0)
        policy = await asyncio.to_thread(_make_policy, objects)
        while self._changes_since:
            changes, self._changes_since = self._changes_since[:SLICE], self._changes_since[SLICE:]
            policy.apply(changes)
            await asyncio.sleep(0)
        self._policy = policy

    async def _list(self, kind: FollowedKind, reader: UpstreamReader) -> None:
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                await kind.read_all(reader)
                return
            except ExpiredVersion:
                reason = "reading it took longer than the cluster remembers"
            except UnreadableAnswer as error:
                reason = f"its answer cannot be understood: {error}"
        raise ProviderError(COULD_NOT_READ, cause=reason)

    def _unavailable(self) -> ProviderError:
        cause = next((kind.trouble for kind in self._kinds.values() if kind.trouble), "")
        if self._policy is None:
            summary = f'the RBAC policy of the upstream "{self.upstream}" has not been read yet'
        else:
            limit = short_duration(self._settings.max_stale)
            summary = (
                f'the RBAC policy of the upstream "{self.upstream}" was not confirmed for {self.age:.0f} s'
                f" (from.maxStale: {limit})"
            )
        return ProviderError(summary, cause=cause or None)


def _make_policy(objects: list[list[Role | Binding]]) -> RbacPolicy:
    with long_work():
        items = [item for part in objects for item in part]
        roles = tuple(item for item in items if isinstance(item, Role))
        bindings = tuple(item for item in items if isinstance(item, Binding))
        return RbacPolicy(Manifests(roles, bindings), defaults=False)
