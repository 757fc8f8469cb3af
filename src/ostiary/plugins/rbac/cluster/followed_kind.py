"""One kind of object at a cluster, followed: list, watch from there, and list again when the watch cannot go on.

    list  ->  watch  ->  ended: watch again from the last version       the usual
                     ->  410, or what cannot be understood: list        what changed since is then found by comparing
                     ->  cut off, refused: wait, watch again            an outage; what is known stays

Made by `cluster.followed_policy`, one per kind; it tells that what has changed. Everything happens in one task.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import quote

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary.interfaces.upstream_abilities.following import UpstreamReader
from ostiary.plugins.rbac.cluster.known_objects import KnownObjects
from ostiary.plugins.rbac.cluster.paged_list import (
    COULD_NOT_READ,
    ExpiredVersion,
    PolicyTooLarge,
    list_kind,
    read_version,
    refusal,
)
from ostiary.plugins.rbac.cluster.pauses import Pauses
from ostiary.plugins.rbac.policy import ObjectChange, ObjectKey
from ostiary.wire.rbac.served import (
    BASE_PATH,
    BOOKMARK,
    DELETED,
    ERROR,
    PLURALS,
    ServedEvent,
    UnreadableAnswer,
    decode_event,
    decode_status_code,
    entries_of,
)

# An object may have 1.5 MB in etcd, and JSON may need six characters for a byte of it: \u003c for <.
LONGEST_LINE = 16 * 1024 * 1024
# The server ends a watch after so long; then we know that it is still there, whether or not it sends bookmarks.
WATCH_SECONDS = 300.0
# So much longer than the watch may take until nothing more is expected of it.
GRACE_SECONDS = 10.0
# So many changes come into force at once, so that no request waits for them.
SLICE = 200
LOG_SECONDS = 60.0
# A list that is too large is not read again and again: somebody must change a setting, or remove objects.
TOO_LARGE_SECONDS = 300.0
GONE = 410
# Of a resourceVersion: etcd counts in 64 bits.
LONGEST_NUMBER = 20

log = logging.getLogger("ostiary.rbac")


class KindOwner(Protocol):
    """Whom a follower of one kind tells, and asks how much room there is."""

    def take(self, changes: list[ObjectChange]) -> None:
        """These changes come into force."""

    def check_room(self, kind: str, entries: int) -> None:
        """Raise `PolicyTooLarge` if *kind* may not have so many entries."""

    def confirmed(self) -> None:
        """A kind was heard of: `heard_at` has changed."""


class FollowedKind:
    """`objects` is what is known of the kind; `heard_at` when the server last confirmed it, minus infinity if never."""

    def __init__(
        self, kind: str, policy: KindOwner, *, clock: Clock, watch_seconds: float, relist_seconds: float, pauses: Pauses
    ) -> None:
        self.kind = kind
        self.objects = KnownObjects()
        self.entries = 0
        self.heard_at = -math.inf
        self.lists = self.changes = self.unreadable = 0
        self.trouble = ""
        self._policy = policy
        self._clock = clock
        self._watch_seconds = watch_seconds
        self._relist_seconds = relist_seconds
        self._pauses = pauses
        # What a watch goes on from; empty: everything must be listed.
        self._version = ""
        self._listed_at = -math.inf
        # When a list, an event, a bookmark or the proper end of a watch last came.
        self._news_at = -math.inf
        self._logged_at = -math.inf

    @property
    def is_listed(self) -> bool:
        return self.heard_at > -math.inf

    def adopt(self, old: FollowedKind) -> None:
        """Go on from what *old* knows."""
        self.objects, self.entries, self.heard_at = old.objects, old.entries, old.heard_at
        self._version, self._listed_at, self._news_at = old._version, old._listed_at, old._news_at
        self.lists, self.changes, self.unreadable = old.lists, old.changes, old.unreadable

    async def run(self, reader: UpstreamReader) -> None:
        """Follow for as long as it is not cancelled."""
        while True:
            began, failed, longest = self._clock.monotonic(), True, 0.0
            try:
                await self._bring_up_to_date(reader)
                await self._watch(reader)
                failed = False
            except ExpiredVersion:
                self._version = ""
                log.info("the list of %s is read again: the cluster no longer has what changed since", self._plural)
            except UnreadableAnswer as error:
                self._version = ""
                self.unreadable += 1
                self._record_failure(f"what the cluster said of {self._plural} cannot be understood: {error}")
            except PolicyTooLarge as error:
                # Nothing is confirmed until it could be listed: what cannot be taken up may be a withdrawn right.
                self._version, longest = "", TOO_LARGE_SECONDS
                self._record_failure(error.cause or error.summary)
            except ProviderError as error:
                self._record_failure(error.cause or error.summary)
            except Exception as error:
                # A bug in one attempt must not end all later ones. What is known may be half of something.
                self._version = ""
                self._record_failure(f"an error in the gateway: {type(error).__name__}")
                log.exception("the %s of a cluster cannot be followed at this moment", self._plural)
            lasted = self._clock.monotonic() - began
            await self._pauses.wait(lasted=lasted, failed=failed, longest=longest)

    async def read_all(self, reader: UpstreamReader) -> None:
        """Read everything, and put into force what differs from what is known."""
        began = self._clock.monotonic()
        listed = await list_kind(
            reader, self.kind, check_room=lambda entries: self._policy.check_room(self.kind, entries)
        )
        self.lists += 1
        self._note_unreadable(listed.unreadable)
        if self._goes_back_to(listed.version):
            log.warning("the cluster has gone back in time: its %s are of an older version than before", self._plural)
        if self.is_listed:
            await self._change_to(listed.objects)
        else:
            # Nothing of it is in force anywhere.
            self.objects, self.entries = listed.objects, listed.entries
        self._version, self._listed_at, self._news_at = listed.version, began, began
        self._confirm(began)

    async def may_watch(self, reader: UpstreamReader) -> None:
        """Raise `ProviderError` if the kind may not be listed and watched."""
        version = await read_version(reader, self.kind)
        async with reader.read_lines(
            self._watch_target(version, 1), longest=LONGEST_LINE, silence=GRACE_SECONDS
        ) as lines:
            if lines.answer is not None:
                raise refusal(lines.answer, "watch", self.kind)

    # --- listing and watching ---

    async def _bring_up_to_date(self, reader: UpstreamReader) -> None:
        """List, unless a watch can go on from where the last one ended."""
        now = self._clock.monotonic()
        is_due = now - self._listed_at >= self._relist_seconds
        # A server may accept watches and tell nothing, or what comes next cannot be received: a list goes past that.
        is_silent = now - self._news_at >= self._longest_watch
        if not self._version or is_due or is_silent:
            await self.read_all(reader)
        # A server that was restored from a backup may take a version of its future for a promise, and wait for it.
        elif self._goes_back_to(await read_version(reader, self.kind)):
            self._version, last = "", self._version
            log.warning("the cluster has gone back in time: it is older than version %s of its %s", last, self._plural)
            await self.read_all(reader)

    async def _watch(self, reader: UpstreamReader) -> None:
        target = self._watch_target(self._version, max(1, round(self._watch_seconds)))
        async with reader.read_lines(target, longest=LONGEST_LINE, silence=self._longest_watch) as lines:
            if lines.answer is not None:
                if GONE in (lines.answer.status, decode_status_code(lines.answer.body)):
                    raise ExpiredVersion
                raise refusal(lines.answer, "watch", self.kind)
            began = self._clock.monotonic()
            self._confirm(began)
            async for batch in lines.batches():
                self._take_events(batch)
                self._news_at = self._clock.monotonic()
                self._confirm(self._news_at)
                if self._news_at - began >= self._longest_watch:
                    # Not every server ends it, and between two watches it is seen whether a list is due.
                    return
            self._news_at = self._clock.monotonic()

    @property
    def _longest_watch(self) -> float:
        return self._watch_seconds + GRACE_SECONDS

    def _watch_target(self, version: str, seconds: int) -> str:
        return (
            f"{BASE_PATH}/{self._plural}?watch=true&allowWatchBookmarks=true"
            f"&resourceVersion={quote(version, safe='')}&timeoutSeconds={seconds}"
        )

    def _take_events(self, batch: Iterable[bytes]) -> None:
        changes: list[ObjectChange] = []
        version = self._version
        try:
            for line in batch:
                event = decode_event(self.kind, line)
                if event.type == ERROR:
                    raise ExpiredVersion if event.code == GONE else _watch_failure(event.code)
                version = self._next_version(event, version)
                if event.type != BOOKMARK:
                    changes.append(self._change(event))
        finally:
            # Those before a mistake were right, and a withdrawn right must not wait for the next list.
            self._apply(changes)
            self._version = version

    def _change(self, event: ServedEvent) -> ObjectChange:
        key = ObjectKey(self.kind, event.namespace, event.name)
        if event.type != DELETED and event.item is None:
            # What it was before no longer holds, and what it is now gives nobody anything.
            self._note_unreadable([event.name])
        return ObjectChange(key, event.item)

    def _next_version(self, event: ServedEvent, last: str) -> str:
        version = event.resource_version
        if not version:
            raise UnreadableAnswer("an event has no resourceVersion")
        if _is_older(version, last):
            # Some servers give what is deleted with the version that it had.
            if event.type == DELETED:
                return last
            raise UnreadableAnswer("an event is older than the one before")
        return version

    # --- what is known ---

    async def _change_to(self, objects: KnownObjects) -> None:
        """Put into force what differs, some of it at a time: requests come in between. Empties *objects*."""
        # What was withdrawn comes first, so that nobody has more in between than before or after.
        known = self.objects
        for shard in known.shards:
            gone = [ObjectChange(key, None) for key in shard if key not in objects]
            await self._apply_slices(gone)
        for items in objects.take_out(SLICE):
            await self._apply_slices([ObjectChange(key, item) for key, item in items if known.get(key) != item])

    async def _apply_slices(self, changes: list[ObjectChange]) -> None:
        for start in range(0, len(changes), SLICE):
            self._apply(changes[start : start + SLICE])
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _apply(self, changes: list[ObjectChange]) -> None:
        if not changes:
            return
        entries = self.entries
        for key, item in changes:
            old = self.objects.get(key)
            entries += (0 if item is None else entries_of(item)) - (0 if old is None else entries_of(old))
        if entries > self.entries:
            self._policy.check_room(self.kind, entries)
        for key, item in changes:
            self.objects.put(key, item)
        self.entries = entries
        self.changes += len(changes)
        self._policy.take(changes)

    def _confirm(self, at: float) -> None:
        """What is known was right at this moment."""
        self.heard_at = max(self.heard_at, at)
        if self.trouble:
            log.info("the %s of the cluster are followed again", self._plural)
        self.trouble = ""
        self._policy.confirmed()

    def _goes_back_to(self, version: str) -> bool:
        return bool(self._version) and _is_older(version, self._version)

    def _note_unreadable(self, names: list[str]) -> None:
        if names:
            self.unreadable += len(names)
            shown = ", ".join(f'"{name[:80]}"' for name in names[:5])
            log.error("%d %s of the cluster cannot be understood and give nothing: %s", len(names), self._plural, shown)

    def _record_failure(self, cause: str) -> None:
        """Logged when it begins, and then once in a while."""
        now = self._clock.monotonic()
        if not self.trouble or now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            age = (
                "nothing of them is known yet" if not self.is_listed else f"last heard {now - self.heard_at:.0f} s ago"
            )
            log.warning("the %s of the cluster cannot be followed (%s): %s", self._plural, age, cause)
        self.trouble = cause

    @property
    def _plural(self) -> str:
        return PLURALS[self.kind]


def _is_older(version: str, last: str) -> bool:
    """Whether *version* is an older one than *last*. Those of Kubernetes are numbers; of others nothing is known."""
    are_numbers = version.isdecimal() and last.isdecimal() and max(len(version), len(last)) <= LONGEST_NUMBER
    return are_numbers and int(version) < int(last)


def _watch_failure(code: int) -> ProviderError:
    return ProviderError(COULD_NOT_READ, cause=f"the watch ended with status {code}")
