"""Moves objects from one token store to another: compared side by side by name, and only what differs is written.

Called by `moving`. Versions and times of change are each store's own, so only contents are compared. There is no log of
deleted objects: one that only the target has was deleted in the source, or is the target's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from ostiary.errors import ConfigurationError
from ostiary.interfaces.store_abilities.stored_objects import ObjectStore, StoredObject

PAGE = 100


@dataclass(slots=True)
class ObjectComparison:
    """How many objects the source has, and how many differ in the target."""

    objects: int = 0
    missing: int = 0
    changed: int = 0
    foreign: int = 0

    @property
    def differences(self) -> int:
        return self.missing + self.changed + self.foreign


async def compare_objects(source: ObjectStore | None, target: ObjectStore | None) -> ObjectComparison:
    """None stands for a store that keeps no objects."""
    comparison = ObjectComparison()
    async for ours, theirs in _pairs(source, target):
        comparison.objects += ours is not None
        if theirs is None:
            comparison.missing += 1
        elif ours is None:
            comparison.foreign += 1
        else:
            comparison.changed += ours.data != theirs.data
    return comparison


def check_objects(comparison: ObjectComparison, target: ObjectStore | None, *, replacing: bool = False) -> None:
    """Raise if the target cannot hold the objects of the source, or has others that a move would delete."""
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
    """Make the target hold the objects of the source and no others; returns how many were written or deleted."""
    changes = 0
    async for ours, theirs in _pairs(source, target):
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
    """By kind."""
    counts: dict[str, int] = {}
    async for stored in _read_objects(store):
        counts[stored.kind] = counts.get(stored.kind, 0) + 1
    return counts


async def _pairs(
    source: ObjectStore | None, target: ObjectStore | None
) -> AsyncIterator[tuple[StoredObject | None, StoredObject | None]]:
    """The objects of both by kind and name; None where one of them has none such."""
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
        while store is not None and (page := await store.list_objects(kind, after=after, limit=PAGE)):
            for stored in page:
                yield stored
            after = page[-1].name
