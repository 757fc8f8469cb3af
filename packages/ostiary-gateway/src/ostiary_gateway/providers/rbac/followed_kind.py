"""The policy of a cluster, followed: its four kinds are listed once, and then watched.

followed_policy    the policy in force, how old it is, and whether it may still be used
followed_kind      one kind: list, watch, list again when the watch cannot go on
known_objects      its objects, in many small dicts
paged_list         one whole list, page by page
pauses             how long to wait before the next attempt
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

# The objects of one kind by key, in many small dicts. Changed by one task; knows nothing of what they mean.
#
# A single dict of a hundred thousand entries takes milliseconds when it grows, is copied or is freed, and no request is
# served meanwhile. Here each of these is done a part at a time.

# A power of two. With a million objects there are four thousand in each.
SHARDS = 256


class KnownObjects:
    """A mapping of objects. `shards` is for reading only."""

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
        """Set it, or take it out if *item* is None; what it was before."""
        shard = self.shards[hash(key) % SHARDS]
        before = shard.get(key)
        if item is None:
            shard.pop(key, None)
        else:
            shard[key] = item
        self._size += (item is not None) - (before is not None)
        return before

    def take_out(self, count: int) -> Iterator[list[tuple[ObjectKey, Role | Binding]]]:
        """All objects, *count* at a time; they are no longer here then."""
        for shard in self.shards:
            while shard:
                part = [shard.popitem() for _ in range(min(count, len(shard)))]
                self._size -= len(part)
                yield part


# One whole list of a kind, page by page, as an API server gives it. Bounded in pages, in bytes and in entries.
#
# Called by `cluster.followed_kind`. Without a resourceVersion in the question the answer is what etcd holds now, and
# not what the API server that happens to answer has seen of it so far.

# Half of what kubectl asks for. Reading a page of so many takes a millisecond, in which no request is served.
PAGE = 250
LARGEST_PAGE = 64 * 1024 * 1024
# A server may give pages without objects, but not for ever.
MOST_EMPTY_PAGES = 10

COULD_NOT_READ = "the RBAC policy of a cluster could not be read"


class ExpiredVersion(Exception):
    """The server no longer knows what was there at that resourceVersion: everything must be listed again."""


class PolicyTooLarge(ProviderError):
    """There is more than the settings allow."""


@dataclass(slots=True)
class KindList:
    """All objects of a kind, and the version that a watch goes on from."""

    version: str = ""
    objects: KnownObjects = field(default_factory=KnownObjects)
    entries: int = 0
    unreadable: list[str] = field(default_factory=list)

    def add(self, page: ServedPage) -> int:
        """Add what is on *page*; how many entries that has."""
        # All pages are of one moment, which the first one names.
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
    """Raises `ProviderError`, `UnreadableAnswer`, or `ExpiredVersion` if it took longer than the server remembers.

    *check_room* is called with the entries so far, and raises if there are too many.
    """
    listed, token, empty_pages = KindList(), "", 0
    # Of all pages, also what one of them says again: a list that repeats itself must end too.
    read = 0
    while True:
        body = await _read_page(reader, kind, token)
        # The garbage collector would look through this and the pages before, and hold everybody up. It is only off
        # while we have the turn: the next page may take the server long.
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
        # Requests come first.
        await asyncio.sleep(0)


async def read_version(reader: UpstreamReader, kind: str) -> str:
    """The version of the newest change that the cluster has made, whatever it was."""
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


# How long to wait before the next attempt: ever longer while it goes on to fail, and never all at the same moment.

FIRST_SECONDS = 0.1
# After failures, and after watches that the server ends too early: the second is served, so changes come soon enough.
MOST_AFTER_FAILURE, MOST_AFTER_END = 10.0, 2.0
# A watch that lasted so long ended as watches do.
LASTED_SECONDS = 10.0


class Pauses:
    """The pauses of one follower. *share* is which part of a pause is waited: workers must not come back together."""

    def __init__(
        self,
        first: float = FIRST_SECONDS,
        share: Callable[[], float] = lambda: random.uniform(0.5, 1.0),  # noqa: S311  # no secret
    ) -> None:
        self._first = first
        self._share = share
        self._attempts = 0

    def next_pause(self, *, lasted: float, failed: bool, longest: float = 0.0) -> float:
        """The seconds to wait after an attempt that *lasted* so long; at most *longest*, if that is set."""
        if not failed and lasted >= LASTED_SECONDS:
            self._attempts = 0
        longest = longest or (MOST_AFTER_FAILURE if failed else MOST_AFTER_END)
        pause = min(self._first * 2.0 ** min(self._attempts, 20), longest)
        self._attempts += 1
        return pause * self._share()

    async def wait(self, *, lasted: float, failed: bool, longest: float = 0.0) -> None:
        await asyncio.sleep(self.next_pause(lasted=lasted, failed=failed, longest=longest))


# One kind of object at a cluster, followed: list, watch from there, and list again when the watch cannot go on.
#
#     list  ->  watch  ->  ended: watch again from the last version       the usual
#                      ->  410, or what cannot be understood: list        what changed since is then found by comparing
#                      ->  cut off, refused: wait, watch again            an outage; what is known stays
#
# Made by `cluster.followed_policy`, one per kind; it tells that what has changed. Everything happens in one task.

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
