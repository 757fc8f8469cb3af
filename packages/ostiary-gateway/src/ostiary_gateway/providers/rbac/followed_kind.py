"""Follow one kind of RBAC object at a cluster: list it page by page, then watch it.

list  ->  watch  ->  ended: watch again from the last version       the usual case
                 ->  410, or an unreadable event: list again        missed changes are found by comparing
                 ->  interrupted, or an error status: retry         an outage; the objects stay in force
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.admission import UpstreamAnswer
from ostiary_gateway.interfaces.upstream_capabilities import UpstreamReader
from ostiary_gateway.providers.rbac.index import ObjectKey
from ostiary_gateway.providers.rbac.long_work import long_work
from ostiary_gateway.providers.rbac.policy import ObjectChange
from ostiary_gateway.wire.rbac import Binding, Role
from ostiary_gateway.wire.rbac_served import (
    BASE_PATH,
    BOOKMARK,
    DELETED,
    ERROR,
    PLURALS,
    ServedEvent,
    ServedPage,
    UnreadableAnswer,
    decode_event,
    decode_page,
    decode_status_code,
    entries_of,
)

# Number of dicts of a `KnownObjects`; a power of two. With a million objects each dict has four thousand.
SHARDS = 256


class KnownObjects:
    """The objects of one kind by key, in many small dicts. `shards` is read-only. Used by one task.

    A single dict of a hundred thousand entries takes milliseconds to grow, copy or free, and the event loop serves no
    request meanwhile. Small dicts divide that work.
    """

    __slots__ = ("_size", "shards")

    def __init__(self) -> None:
        self.shards: tuple[dict[ObjectKey, Role | Binding], ...] = tuple({} for _ in range(SHARDS))
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self.shards[hash(key) % SHARDS]

    def get(self, key: ObjectKey) -> Role | Binding | None:
        return self.shards[hash(key) % SHARDS].get(key)

    def put(self, key: ObjectKey, item: Role | Binding | None) -> Role | Binding | None:
        """Set *key* to *item*, or remove it if *item* is None. Return the previous value."""
        shard = self.shards[hash(key) % SHARDS]
        before = shard.get(key)
        if item is None:
            shard.pop(key, None)
        else:
            shard[key] = item
        self._size += (item is not None) - (before is not None)
        return before

    def take_out(self, count: int) -> Iterator[list[tuple[ObjectKey, Role | Binding]]]:
        """Remove all objects and yield them, *count* at a time."""
        for shard in self.shards:
            while shard:
                part = [shard.popitem() for _ in range(min(count, len(shard)))]
                self._size -= len(part)
                yield part


# Half of kubectl's page size. Decoding such a page blocks the event loop for a millisecond.
PAGE = 250
LARGEST_PAGE = 64 * 1024 * 1024
# A server may send pages without objects, but not endlessly.
MOST_EMPTY_PAGES = 10

COULD_NOT_READ = "the RBAC policy of a cluster could not be read"


class ExpiredVersion(Exception):
    """The resourceVersion or continue token has expired: everything must be listed again."""


class PolicyTooLarge(ProviderError):
    """The policy has more entries than the settings allow."""


@dataclass(slots=True)
class KindList:
    """All objects of a kind, and the resourceVersion from which to watch."""

    version: str = ""
    objects: KnownObjects = field(default_factory=KnownObjects)
    entries: int = 0
    unreadable: list[str] = field(default_factory=list)

    def add(self, page: ServedPage) -> int:
        """Add the objects of *page* and return their number of entries."""
        # All pages show the state at one resourceVersion, which the first page has.
        self.version = self.version or page.resource_version
        self.unreadable += page.unreadable
        read = len(page.unreadable)
        for item in page.items:
            entries = entries_of(item)
            before = self.objects.put(ObjectKey(item.kind, item.namespace, item.name), item)
            self.entries += entries - (0 if before is None else entries_of(before))
            read += entries
        return read


async def list_kind(reader: UpstreamReader, kind: str, *, check_room: Callable[[int], None]) -> KindList:
    """Return the complete list of *kind*. It is bounded in pages, bytes and entries.

    The request has no resourceVersion, so the list is what etcd holds and not what the cache of this API server has
    seen so far. *check_room* is called with the entries so far, and raises if there are too many. Raises
    `ProviderError`, `UnreadableAnswer`, or `ExpiredVersion` if the continue token expired.
    """
    listed, token, empty_pages = KindList(), "", 0
    # Entries of all pages, duplicates included, so that a list that repeats itself ends too.
    read = 0
    while True:
        body = await _read_page(reader, kind, token)
        # The garbage collector would scan this page and those before it, which blocks all requests. It is only off
        # during this block: the server may take long to send the next page.
        with long_work(many=PAGE):
            page = decode_page(kind, body)
            read += listed.add(page)
        check_room(read)
        if not page.continue_token:
            return listed
        empty_pages = 0 if page.items else empty_pages + 1
        if page.continue_token == token or empty_pages > MOST_EMPTY_PAGES:
            raise UnreadableAnswer("the list does not end")
        token = page.continue_token
        # Let waiting requests run.
        await asyncio.sleep(0)


async def read_version(reader: UpstreamReader, kind: str) -> str:
    """Return the resourceVersion of the newest change in the cluster, of any kind."""
    return decode_page(kind, await _read_page(reader, kind, "", limit=1)).resource_version


async def _read_page(reader: UpstreamReader, kind: str, token: str, limit: int = PAGE) -> bytes:
    target = f"{BASE_PATH}/{PLURALS[kind]}?limit={limit}"
    if token:
        target += f"&continue={quote(token, safe='')}"
    answer = await reader.get(target, largest=LARGEST_PAGE)
    if answer.status == 410:
        raise ExpiredVersion
    if answer.status != 200:
        raise refusal(answer, "list", kind)
    return answer.body


def refusal(answer: UpstreamAnswer, verb: str, kind: str) -> ProviderError:
    plural = PLURALS[kind]
    if answer.status == 403:
        cause = f"the gateway's credential may not {verb} {plural} there (status 403)"
        hint = "ostiary-gateway impersonation-role prints the role that the gateway needs there"
        return ProviderError(COULD_NOT_READ, cause=cause, hint=hint)
    if answer.status == 401:
        return ProviderError(COULD_NOT_READ, cause="it rejects the gateway's own credential (status 401)")
    if answer.status == 404:
        return ProviderError(COULD_NOT_READ, cause=f"it does not serve {plural} (status 404)")
    return ProviderError(COULD_NOT_READ, cause=f"it answered status {answer.status} when asked to {verb} {plural}")


FIRST_SECONDS = 0.1
# Maximum pause after failures, and after watches that the server ends too early: those still deliver changes.
MOST_AFTER_FAILURE, MOST_AFTER_END = 10.0, 2.0
# A watch that lasted this long ended normally.
LASTED_SECONDS = 10.0


class Pauses:
    """Exponential backoff of one follower.

    *share* returns the fraction of a pause to wait, at random so that the workers do not retry at the same time.
    """

    def __init__(
        self,
        first: float = FIRST_SECONDS,
        share: Callable[[], float] = lambda: random.uniform(0.5, 1.0),  # noqa: S311  # no secret
    ) -> None:
        self._first = first
        self._share = share
        self._attempts = 0

    def next_pause(self, *, lasted: float, failed: bool, longest: float = 0.0) -> float:
        """Return the seconds to wait after an attempt of *lasted* seconds; at most *longest*, if that is set."""
        if not failed and lasted >= LASTED_SECONDS:
            self._attempts = 0
        longest = longest or (MOST_AFTER_FAILURE if failed else MOST_AFTER_END)
        pause = min(self._first * 2.0 ** min(self._attempts, 20), longest)
        self._attempts += 1
        return pause * self._share()

    async def wait(self, *, lasted: float, failed: bool, longest: float = 0.0) -> None:
        await asyncio.sleep(self.next_pause(lasted=lasted, failed=failed, longest=longest))


# An object may have 1.5 MB in etcd, and JSON may need six characters for one byte: \u003c for <.
LONGEST_LINE = 16 * 1024 * 1024
# The server ends a watch after this time, which proves that it is still there even if it sends no bookmarks.
WATCH_SECONDS = 300.0
# Added to the duration of a watch before it counts as dead.
GRACE_SECONDS = 10.0
# Maximum number of changes that are applied without letting requests run.
SLICE = 200
LOG_SECONDS = 60.0
# Pause before a list that is too large is read again: the operator must change a setting or remove objects.
TOO_LARGE_SECONDS = 300.0
GONE = 410
# Digits of a resourceVersion: etcd counts in 64 bits.
LONGEST_NUMBER = 20

log = logging.getLogger("ostiary.rbac")


class KindOwner(Protocol):
    """The policy that a `FollowedKind` reports to. It also limits the number of entries."""

    def take(self, changes: list[ObjectChange]) -> None:
        """Put *changes* into force."""

    def check_room(self, kind: str, entries: int) -> None:
        """Raise `PolicyTooLarge` if *kind* may not have this many *entries*."""

    def confirmed(self) -> None:
        """`heard_at` of a kind has changed."""


class FollowedKind:
    """One kind of RBAC object, listed and watched in one task.

    `objects` are those in force. `heard_at` is when the server last confirmed them, minus infinity if never.
    """

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
        # Where to resume the watch. Empty: list everything.
        self._version = ""
        self._listed_at = -math.inf
        # When the last list, event, bookmark or regular end of a watch was received.
        self._news_at = -math.inf
        self._logged_at = -math.inf

    @property
    def is_listed(self) -> bool:
        return self.heard_at > -math.inf

    def adopt(self, old: FollowedKind) -> None:
        """Continue from the state of *old*."""
        self.objects, self.entries, self.heard_at = old.objects, old.entries, old.heard_at
        self._version, self._listed_at, self._news_at = old._version, old._listed_at, old._news_at
        self.lists, self.changes, self.unreadable = old.lists, old.changes, old.unreadable

    async def run(self, reader: UpstreamReader) -> None:
        """Follow until cancelled."""
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
                # Do not confirm anything until it could be listed: a change that is not applied may revoke a right.
                self._version, longest = "", TOO_LARGE_SECONDS
                self._record_failure(error.cause or error.summary)
            except ProviderError as error:
                self._record_failure(error.cause or error.summary)
            except Exception as error:
                # A bug in one attempt must not end all later ones. The objects may be incomplete, so list again.
                self._version = ""
                self._record_failure(f"an error in the gateway: {type(error).__name__}")
                log.exception("the %s of a cluster cannot be followed at this moment", self._plural)
            lasted = self._clock.monotonic() - began
            await self._pauses.wait(lasted=lasted, failed=failed, longest=longest)

    async def read_all(self, reader: UpstreamReader) -> None:
        """List all objects, and put the differences into force."""
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
            # First list: none of these objects is in force yet.
            self.objects, self.entries = listed.objects, listed.entries
        self._version, self._listed_at, self._news_at = listed.version, began, began
        self._confirm(began)

    async def may_watch(self, reader: UpstreamReader) -> None:
        """Raise `ProviderError` if the gateway's credential may not list and watch the kind."""
        version = await read_version(reader, self.kind)
        async with reader.read_lines(
            self._watch_target(version, 1), longest=LONGEST_LINE, silence=GRACE_SECONDS
        ) as lines:
            if lines.answer is not None:
                raise refusal(lines.answer, "watch", self.kind)

    # --- listing and watching ---

    async def _bring_up_to_date(self, reader: UpstreamReader) -> None:
        """List, unless the watch can be resumed."""
        now = self._clock.monotonic()
        is_due = now - self._listed_at >= self._relist_seconds
        # A server may accept watches and send nothing, or we cannot receive the next event. A list gets past both.
        is_silent = now - self._news_at >= self._longest_watch
        if not self._version or is_due or is_silent:
            await self.read_all(reader)
        # A server restored from a backup may take a resourceVersion ahead of its own as valid, and wait for it.
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
                    # Not every server ends the watch, and the next round checks whether a list is due.
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
            # The events before an invalid one are valid, and a revoked right must not wait for the next list.
            self._apply(changes)
            self._version = version

    def _change(self, event: ServedEvent) -> ObjectChange:
        key = ObjectKey(self.kind, event.namespace, event.name)
        if event.type != DELETED and event.item is None:
            # The previous version of the object is no longer valid, and the unreadable one grants nothing.
            self._note_unreadable([event.name])
        return ObjectChange(key, event.item)

    def _next_version(self, event: ServedEvent, last: str) -> str:
        version = event.resource_version
        if not version:
            raise UnreadableAnswer("an event has no resourceVersion")
        if _is_older(version, last):
            # Some servers send a deleted object with the resourceVersion of its last change.
            if event.type == DELETED:
                return last
            raise UnreadableAnswer("an event is older than the one before")
        return version

    # --- objects in force ---

    async def _change_to(self, objects: KnownObjects) -> None:
        """Put the differences into force, in slices between which requests run. Empties *objects*."""
        # Apply removals first, so that no user temporarily has more rights than before or after.
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
        """Record that the objects were up to date at this time."""
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
        """Log *cause* when the failure begins, and then at most once per `LOG_SECONDS`."""
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
    """Whether *version* is older than *last*. Kubernetes uses numbers; other versions cannot be compared."""
    are_numbers = version.isdecimal() and last.isdecimal() and max(len(version), len(last)) <= LONGEST_NUMBER
    return are_numbers and int(version) < int(last)


def _watch_failure(code: int) -> ProviderError:
    return ProviderError(COULD_NOT_READ, cause=f"the watch ended with status {code}")
