"""Maps that share what is the same: each version is what a dict would be."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.providers.rbac.lookup import ShardedMap

changes = st.lists(st.dictionaries(st.integers(0, 3000), st.one_of(st.none(), st.integers()), max_size=20), max_size=8)


def as_dict(values: ShardedMap[int, int]) -> dict[int, int]:
    items = dict(values.items())
    assert len(values) == len(items)
    assert sorted(values) == sorted(items)
    assert sorted(values.values()) == sorted(items.values())
    return items


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2000), changes)
def test_every_version_is_what_a_dict_would_be(size: int, versions: list[dict[int, int | None]]) -> None:
    expected = {number: number for number in range(size)}
    current: ShardedMap[int, int] = ShardedMap(expected)
    for version in versions:
        before, told = current, as_dict(current)
        current = current.with_changes(version)
        merged = {**expected, **version}
        expected = {key: value for key, value in merged.items() if value is not None}
        assert as_dict(current) == expected
        assert as_dict(before) == told
    for key in (*expected, -1):
        assert (key in current, current.get(key)) == (key in expected, expected.get(key))


def test_it_grows_with_what_it_holds_and_a_small_change_shares_the_rest() -> None:
    current: ShardedMap[int, int] = ShardedMap()
    for number in range(0, 20_000, 100):
        current = current.with_changes({each: each for each in range(number, number + 100)})
    assert as_dict(current) == {number: number for number in range(20_000)}
    changed = current.with_changes({7: 8})
    before, after = current.shards(), changed.shards()
    assert max(map(len, after)) <= 512
    assert sum(one is not other for one, other in zip(before, after, strict=True)) == 1
    assert current.with_changes({}) is current
