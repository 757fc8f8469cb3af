"""Copy and compare token stores: sessions, the revocation log, and objects.

Both stores are read side by side in order, one page at a time, and only differences are written. An interrupted
migration can therefore be resumed, repeating it changes nothing, and the comparison at the end is the same as the one
at the beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ConfigurationError
from ostiary_gateway.interfaces.store_capabilities import (
    ObjectStore,
    PortableStore,
    StoredLog,
    StoredObject,
    StoredSession,
)
from ostiary_gateway.interfaces.token_store import (
    Revocation,
    RevocationKind,
    Session,
    TokenKind,
    TokenRecord,
    TokenStore,
)
from ostiary_gateway.sessions.records import CLOCK_TOLERANCE
from ostiary_gateway.sessions.revocations import LARGEST_SKEW, ends

# Objects. Versions and times of change are specific to each store, so only contents are compared. There is no log of
# deleted objects: one that only the target has was deleted in the source, or is the target's own.

ITEMS_PAGE = 100


@dataclass(slots=True)
class ObjectComparison:
    """The number of objects in the source, and how many differ in the target."""

    objects: int = 0
    missing: int = 0
    changed: int = 0
    foreign: int = 0

    @property
    def differences(self) -> int:
        return self.missing + self.changed + self.foreign


async def compare_objects(source: ObjectStore | None, target: ObjectStore | None) -> ObjectComparison:
    """Compare the objects of two stores. None is a store without objects."""
    comparison = ObjectComparison()
    async for ours, theirs in _moving_objects_pairs(source, target):
        comparison.objects += ours is not None
        if theirs is None:
            comparison.missing += 1
        elif ours is None:
            comparison.foreign += 1
        else:
            comparison.changed += ours.data != theirs.data
    return comparison


def check_objects(comparison: ObjectComparison, target: ObjectStore | None, *, replacing: bool = False) -> None:
    """Raise if the target cannot store the objects of the source, or has others that a migration would delete."""
    if target is None and comparison.objects:
        raise ConfigurationError(
            "the target cannot keep everything that the source holds",
            cause=f"there are {comparison.objects} objects, such as service accounts, and it keeps none",
            hint="name a store of another type",
            code="store-not-movable",
        )
    if comparison.foreign and not replacing:
        raise ConfigurationError(
            "the target holds objects of its own",
            cause=f"{comparison.foreign} of them are not in the source: service accounts or signing keys, for example",
            hint="name an empty store; if they were deleted in the source since the last run, add --replace, which"
            " deletes what the source does not have",
            code="store-not-empty",
        )


async def copy_objects(source: ObjectStore | None, target: ObjectStore) -> int:
    """Make the target contain exactly the objects of the source; return how many were written or deleted."""
    changes = 0
    async for ours, theirs in _moving_objects_pairs(source, target):
        if ours is None:
            assert theirs is not None, "a pair has one of them"
            await target.delete_object(theirs.kind, theirs.name)
        elif theirs is None or ours.data != theirs.data:
            await target.put_object(ours.kind, ours.name, ours.data, version=None)
        else:
            continue
        changes += 1
    return changes


async def count_objects(store: ObjectStore) -> dict[str, int]:
    """Return the number of objects per kind."""
    counts: dict[str, int] = {}
    async for stored in _read_objects(store):
        counts[stored.kind] = counts.get(stored.kind, 0) + 1
    return counts


async def _moving_objects_pairs(
    source: ObjectStore | None, target: ObjectStore | None
) -> AsyncIterator[tuple[StoredObject | None, StoredObject | None]]:
    """Yield the objects of both by kind and name; None for one that a store does not have."""
    source_objects, target_objects = _read_objects(source), _read_objects(target)
    ours, theirs = await anext(source_objects, None), await anext(target_objects, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and _key(ours) < _key(theirs)):
            yield ours, None
            ours = await anext(source_objects, None)
        elif ours is None or _key(theirs) < _key(ours):
            yield None, theirs
            theirs = await anext(target_objects, None)
        else:
            yield ours, theirs
            ours, theirs = await anext(source_objects, None), await anext(target_objects, None)


def _key(stored: StoredObject) -> tuple[str, str]:
    return stored.kind, stored.name


async def _read_objects(store: ObjectStore | None) -> AsyncIterator[StoredObject]:
    for kind in [] if store is None else await store.object_kinds():
        after = ""
        while store is not None and (page := await store.list_objects(kind, after=after, limit=ITEMS_PAGE)):
            for stored in page:
                yield stored
            after = page[-1].name


# Equality of sessions, tokens and logs. A store that decides expiry by the clock of its server converts times as it
# reads and writes them, with an offset only as exact as the network is fast. Times may therefore differ slightly;
# everything else must be equal.

_SOME_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def same_session(ours: Session, theirs: Session) -> bool:
    return (
        _without_times(ours) == _without_times(theirs)
        # Excluded from the equality of sessions.
        and ours.sequence == theirs.sequence
        and _same_time(ours.last_used_at, theirs.last_used_at)
        and _same_time(ours.created_at, theirs.created_at)
        and _same_time(ours.expires_at, theirs.expires_at)
    )


def _without_times(session: Session) -> Session:
    return replace(session, created_at=_SOME_TIME, expires_at=_SOME_TIME)


def same_token(ours: TokenRecord, theirs: TokenRecord) -> bool:
    return (
        (ours.digest, ours.session_id, ours.kind, ours.delegation)
        == (theirs.digest, theirs.session_id, theirs.kind, theirs.delegation)
        and _same_time(ours.issued_at, theirs.issued_at)
        and _same_time(ours.expires_at, theirs.expires_at)
    )


def same_log(ours: StoredLog, theirs: StoredLog) -> bool:
    return (
        (ours.head, ours.forgotten, ours.undone) == (theirs.head, theirs.forgotten, theirs.undone)
        and len(ours.revocations) == len(theirs.revocations)
        and all(map(_same_revocation, ours.revocations, theirs.revocations))
    )


def _same_revocation(ours: Revocation, theirs: Revocation) -> bool:
    return (
        replace(ours, at=None, recorded_at=None) == replace(theirs, at=None, recorded_at=None)
        and _same_time(ours.at, theirs.at)
        and _same_time(ours.recorded_at, theirs.recorded_at)
    )


def _same_time(ours: datetime | None, theirs: datetime | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return abs(ours - theirs) <= CLOCK_TOLERANCE


PAGE = 500
# More revocations than can be recorded between a backup and its restore.
NUMBERS_LEFT_OUT = 1_000_000_000

# Called with the number of compared sessions, after each page.
OnProgress = Callable[[int], None]


class MovableStore(TokenStore, PortableStore, Protocol):
    """A token store that can be exported and imported as a whole."""


class Standing(Enum):
    """How a session in the target compares with that in the source."""

    SAME = "same"
    MISSING = "missing"
    CHANGED = "changed"  # the source has changed it since it was copied
    ENDED = "ended"  # the source has ended it since it was copied
    FOREIGN = "foreign"  # it is only in the target, or the target has changed it


@dataclass(slots=True)
class Comparison:
    """The number of sessions and tokens in the source, of sessions per standing in the target, and both logs."""

    source_log: StoredLog
    target_log: StoredLog
    sessions: int = 0
    tokens: int = 0
    missing: int = 0
    changed: int = 0
    ended: int = 0
    foreign: int = 0

    @property
    def is_same(self) -> bool:
        differences = self.missing + self.changed + self.ended + self.foreign
        return not differences and self.is_same_log

    @property
    def is_same_log(self) -> bool:
        return same_log(self.source_log, self.target_log)

    def add(self, standing: Standing, stored: StoredSession | None) -> None:
        if stored is not None:
            self.sessions += 1
            self.tokens += len(stored.tokens)
        if standing is not Standing.SAME:
            setattr(self, standing.value, getattr(self, standing.value) + 1)


async def compare(
    source: PortableStore,
    target: PortableStore,
    *,
    clock: Clock = SYSTEM_CLOCK,
    on_progress: OnProgress = lambda _: None,
) -> Comparison:
    """Compute what a migration would have to do; change nothing."""
    comparison = Comparison(await source.export_log(), await target.export_log())
    async for ours, theirs in _pairs(source, target):
        comparison.add(standing_of(ours, theirs, comparison.source_log, clock.now()), ours)
        if ours is not None and comparison.sessions % PAGE == 0:
            on_progress(comparison.sessions)
    return comparison


def check_target(comparison: Comparison, *, replacing: bool = False) -> None:
    """Raise if the target is in use otherwise, so that a migration would roll it back."""
    ours, theirs = comparison.source_log.head, comparison.target_log.head
    if theirs > ours:
        raise ConfigurationError(
            "the target is further than the source",
            cause=f"its last revocation has the number {theirs}, and that of the source {ours}",
            hint="it is used by another gateway, or was used since: name an empty store",
            code="store-not-empty",
        )
    if comparison.foreign and not replacing:
        raise ConfigurationError(
            "the target holds sessions of its own",
            cause=f"{comparison.foreign} of them are not in the source, or were refreshed in the target since",
            hint="name an empty store; if it was filled from this source more than an hour ago, add --replace, which"
            " ends what the source does not have",
            code="store-not-empty",
        )


async def copy(
    source: MovableStore,
    target: MovableStore,
    *,
    clock: Clock = SYSTEM_CLOCK,
    on_progress: OnProgress = lambda _: None,
) -> int:
    """Make the target contain what the source contains; return how many sessions were written. See `check_target`."""
    # Both stores first correct their times if a clock was set back, so that their times are comparable.
    await source.heartbeat()
    await target.heartbeat()
    log = await source.export_log()
    # The log comes first: revocations then apply even to a partially filled target.
    if not same_log(log, await target.export_log()):
        await target.import_log(log)
    batch: list[StoredSession] = []
    sessions_written = looked_at = 0
    async for ours, theirs in _pairs(source, target):
        standing = standing_of(ours, theirs, log, clock.now())
        looked_at += ours is not None
        if standing is not Standing.SAME:
            batch.append(_in_place_of(ours, theirs))
        if len(batch) >= PAGE:
            await target.import_sessions(batch)
            sessions_written += len(batch)
            batch = []
        if looked_at % PAGE == 0:
            on_progress(looked_at)
    await target.import_sessions(batch)
    return sessions_written + len(batch)


def _in_place_of(ours: StoredSession | None, theirs: StoredSession | None) -> StoredSession:
    if ours is not None:
        return ours
    assert theirs is not None, "a pair has one of them"
    # Replaced by one that expired when it began: it is never found, and the next sweep deletes it.
    return StoredSession(replace(theirs.session, expires_at=theirs.session.created_at), ())


def standing_of(ours: StoredSession | None, theirs: StoredSession | None, log: StoredLog, now: datetime) -> Standing:
    """Return how the target's session (*theirs*) compares with the source's (*ours*), whose log is *log*. Pure."""
    if theirs is None:
        return Standing.SAME if ours is None else Standing.MISSING
    if ours is None:
        return _standing_of_lone(theirs, log, now)
    here, there = _lasting_tokens(ours, now), _lasting_tokens(theirs, now)
    is_same = here.keys() == there.keys() and all(same_token(here[digest], there[digest]) for digest in here)
    if is_same and same_session(ours.session, theirs.session):
        return Standing.SAME
    withdrawn = {each.value for each in log.revocations if each.kind is RevocationKind.TOKEN}
    went_on = any(
        digest.hex() not in withdrawn
        if digest not in here
        else token.kind is TokenKind.SPENT and here[digest].kind is not TokenKind.SPENT
        for digest, token in there.items()
    )
    return Standing.FOREIGN if went_on else Standing.CHANGED


def _standing_of_lone(theirs: StoredSession, log: StoredLog, now: datetime) -> Standing:
    """Return the standing of a session that only the target has."""
    if theirs.session.expires_at - now <= LARGEST_SKEW:
        # It may have expired in the source already, whose clock may be ahead.
        return Standing.SAME
    is_ended = any(ends(revocation, theirs.session) for revocation in log.revocations)
    return Standing.ENDED if is_ended else Standing.FOREIGN


def _lasting_tokens(stored: StoredSession, now: datetime) -> dict[bytes, TokenRecord]:
    """Return the tokens that are not about to expire: those may be missing from one of the stores."""
    return {token.digest: token for token in stored.tokens if token.expires_at - now > LARGEST_SKEW}


async def _pairs(
    source: PortableStore, target: PortableStore
) -> AsyncIterator[tuple[StoredSession | None, StoredSession | None]]:
    """Yield the sessions of both by id; None for one that a store does not have."""
    source_sessions, target_sessions = read_sessions(source), read_sessions(target)
    ours, theirs = await anext(source_sessions, None), await anext(target_sessions, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours.session.id < theirs.session.id):
            yield ours, None
            ours = await anext(source_sessions, None)
        elif ours is None or theirs.session.id < ours.session.id:
            yield None, theirs
            theirs = await anext(target_sessions, None)
        else:
            yield ours, theirs
            ours, theirs = await anext(source_sessions, None), await anext(target_sessions, None)


async def read_sessions(store: PortableStore) -> AsyncIterator[StoredSession]:
    after = ""
    while page := await store.export_sessions(after, PAGE):
        for stored in page:
            yield stored
        after = page[-1].session.id


async def end_restored_sessions(store: MovableStore, *, by: str) -> int:
    """End every session of a store that was restored from a backup; return how many.

    The revocation numbers jump far beyond those assigned since the backup, and all of them count as deleted: a login
    that began under one of those numbers fails, and gateways drop their caches.
    """
    # First correct the clock: a backup may come from a machine whose clock was ahead.
    await store.heartbeat()
    number = (await store.export_log()).head + NUMBERS_LEFT_OUT
    await store.import_log(StoredLog(number, number))
    return await store.revoke(Revocation(RevocationKind.BEFORE, "", by=by))


# Counts, for ``ostiary-gateway store check``.


@dataclass(frozen=True, slots=True)
class ContentCounts:
    """The number of sessions, tokens and revocations in a store.

    `kept` counts all tokens, including expired ones that are not deleted yet. What requires reading the whole store is
    None for a store that is not portable.
    """

    head: int
    marks: int
    kept: int
    sessions: int | None = None
    sessions_without_tokens: int | None = None
    tokens: dict[TokenKind, int] = field(default_factory=dict)
    forgotten: int | None = None

    @property
    def unswept(self) -> int | None:
        return None if self.sessions is None else max(self.kept - sum(self.tokens.values()), 0)


async def count_contents(store: TokenStore, portable: PortableStore | None) -> ContentCounts:
    """Count the contents of *store*; *portable* is the same store, if it can be read as a whole."""
    head, marks, kept = (await store.revocations_after(None)).head, len(await store.marks()), await store.count()
    if portable is None:
        return ContentCounts(head, marks, kept)
    sessions = without = 0
    tokens: Counter[TokenKind] = Counter()
    async for stored in read_sessions(portable):
        sessions += 1
        without += not stored.tokens
        tokens.update(token.kind for token in stored.tokens)
    log = await portable.export_log()
    return ContentCounts(head, marks, kept, sessions, without, dict(tokens), log.forgotten)
