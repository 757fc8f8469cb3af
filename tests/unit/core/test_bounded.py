"""A dict with room for so many."""

from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.bounded import Bounded


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
