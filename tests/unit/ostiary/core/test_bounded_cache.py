"""A dict with room for so many."""

from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.bounded_cache import Bounded, BoundedByOwner
from tests.support.bounded import bytes_of_owner


@given(st.integers(1, 9), st.lists(st.integers(0, 30)))
def test_it_never_holds_more_and_always_the_newest(most: int, keys: list[int]) -> None:
    kept: Bounded[int, int] = Bounded(most)
    for number, key in enumerate(keys):
        kept.keep(key, number)
        assert len(kept) <= most
        assert kept[key] == number


def test_the_oldest_make_room() -> None:
    kept: Bounded[int, None] = Bounded(8)
    for number in range(9):
        kept.keep(number, None)
    assert list(kept) == [2, 3, 4, 5, 6, 7, 8]


def test_what_is_there_needs_no_room() -> None:
    kept: Bounded[str, int] = Bounded(1)
    kept.keep("a", 1)
    kept.keep("a", 2)
    assert kept == {"a": 2}


# --- by owner, in bytes ---


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(1, 40))))
def test_neither_an_owner_nor_all_together_hold_more_bytes_than_allowed(steps: list[tuple[str, int, int]]) -> None:
    """T2."""
    kept: BoundedByOwner[tuple[str, int], int] = BoundedByOwner(100, 50, entries=8, share=5)
    sizes: dict[tuple[str, int], int] = {}
    for owner, number, size in steps:
        assert kept.keep((owner, number), size, owner=owner, size=size)
        sizes[owner, number] = size
        assert kept[owner, number] == size
        assert kept.held == sum(sizes[key] for key in kept) <= 100
        assert len(kept) <= 8
        for each in "abc":
            mine = [key for key in kept if key[0] == each]
            assert bytes_of_owner(kept, each) == sum(sizes[key] for key in mine) <= 50
            assert len(mine) <= 5


def test_one_owner_evicts_only_what_is_its_own() -> None:
    """T2."""
    kept: BoundedByOwner[str, int] = BoundedByOwner(1000, 100)
    kept.keep("ann", 1, owner="ann", size=50)
    for number in range(1000):
        kept.keep(f"mallory-{number}", number, owner="mallory", size=7)
    assert kept["ann"] == 1
    assert bytes_of_owner(kept, "mallory") <= 100
    assert "mallory-999" in kept


def test_what_is_larger_than_a_share_is_not_kept_and_takes_nothing_away() -> None:
    kept: BoundedByOwner[str, int] = BoundedByOwner(1000, 100)
    kept.keep("small", 1, owner="ann", size=50)
    assert not kept.keep("large", 2, owner="ann", size=101)
    assert dict(kept) == {"small": 1}


def test_clearing_forgets_the_sizes_too() -> None:
    kept: BoundedByOwner[str, int] = BoundedByOwner(1000, 100)
    for owner in ("ann", "bob"):
        for number in range(3):
            kept.keep(f"{owner}-{number}", number, owner=owner, size=5)
    kept.clear()
    assert (kept.held, bytes_of_owner(kept, "bob"), len(kept)) == (0, 0, 0)
