"""Objects are compared by their contents, page by page, and a store that keeps none gets none."""

from __future__ import annotations

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.stores import transfer as moving_objects
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.stores.transfer import (
    ObjectComparison,
    check_objects,
    compare_objects,
    copy_objects,
    count_objects,
)


async def test_what_differs_is_counted_and_then_copied() -> None:
    source, target = MemoryTokenStore(), MemoryTokenStore()
    for store, kind, name, data in (
        (source, "a", "same", b"1"),
        (target, "a", "same", b"1"),
        (source, "a", "changed", b"1"),
        (target, "a", "changed", b"2"),
        (source, "b", "missing", b"1"),
        (target, "a", "theirs", b"1"),
        (target, "c", "theirs", b"1"),
    ):
        await store.put_object(kind, name, data, version=0)
    assert await compare_objects(source, target) == ObjectComparison(objects=3, missing=1, changed=1, foreign=2)
    assert await copy_objects(source, target) == 4
    assert (await compare_objects(source, target)).differences == 0
    assert await copy_objects(source, target) == 0
    assert await count_objects(target) == {"a": 2, "b": 1}


async def test_more_than_a_page_is_moved() -> None:
    source, target = MemoryTokenStore(), MemoryTokenStore()
    for number in range(2 * moving_objects.ITEMS_PAGE + 1):
        await source.put_object("a", f"{number:04}", b"%d" % number, version=0)
    assert await copy_objects(source, target) == 2 * moving_objects.ITEMS_PAGE + 1
    assert (await compare_objects(source, target)).differences == 0


async def test_objects_are_not_left_behind_in_silence() -> None:
    source = MemoryTokenStore()
    check_objects(await compare_objects(source, None), None)
    await source.put_object("a", "one", b"", version=0)
    comparison = await compare_objects(source, None)
    with pytest.raises(ConfigurationError) as caught:
        check_objects(comparison, None)
    assert caught.value.code == "store-not-movable"


async def test_a_source_without_objects_leaves_those_of_the_target_alone_unless_told() -> None:
    target = MemoryTokenStore()
    await target.put_object("a", "one", b"", version=0)
    comparison = await compare_objects(None, target)
    with pytest.raises(ConfigurationError) as caught:
        check_objects(comparison, target)
    assert caught.value.code == "store-not-empty"
    check_objects(comparison, target, replacing=True)
    assert await copy_objects(None, target) == 1
    assert await target.object_kinds() == []
