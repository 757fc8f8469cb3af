"""While a lot is computed, other threads get their turns, and afterwards all is as before."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from ostiary_gateway.providers.rbac.long_work import TURN_SECONDS, free_dicts, free_lists, long_work


def test_the_settings_of_the_interpreter_are_as_before_however_it_ends() -> None:
    before = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError):
        work_and_fail()
    assert sys.getswitchinterval() == before
    assert gc.isenabled()


def work_and_fail() -> None:
    with long_work():
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS, rel=0.01)
        assert not gc.isenabled()
        with long_work():
            pass
        # The one around it is still at work.
        assert not gc.isenabled()
        assert 1 / 0


def test_many_new_objects_are_not_looked_through_by_the_garbage_collector() -> None:
    gc.collect()
    frozen = gc.get_freeze_count()
    with long_work():
        many = [[number] for number in range(60_000)]
    assert gc.get_count()[0] < 1000
    assert gc.get_freeze_count() >= frozen + 50_000
    assert len(many) == 60_000


def test_objects_that_others_made_before_are_left_to_the_garbage_collector() -> None:
    gc.disable()
    try:
        others = [[number] for number in range(50_000)]
        frozen = gc.get_freeze_count()
        with long_work():
            pass
        # Objects that were frozen before may be freed meanwhile.
        assert gc.get_freeze_count() < frozen + 50_000
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert len(others) == 50_000


class Partner:
    """Refers to another that refers to it: only the garbage collector frees the two."""

    other: Partner | None = None


def test_garbage_that_others_left_before_is_freed_and_not_put_aside() -> None:
    gc.collect()
    left, right = Partner(), Partner()
    left.other, right.other = right, left
    pair = weakref.ref(left)
    del left, right
    with long_work():
        many = [[number] for number in range(50_000)]
    assert pair() is None
    assert len(many) == 50_000


def test_work_that_overlaps_in_threads_ends_with_the_settings_of_before() -> None:
    before = sys.getswitchinterval()
    is_begun, to_end = threading.Event(), threading.Event()

    def work() -> None:
        with long_work():
            is_begun.set()
            to_end.wait(20)

    thread = threading.Thread(target=work)
    with long_work():
        thread.start()
        assert is_begun.wait(20)
    # The first has ended, and the second one is still at work.
    assert not gc.isenabled()
    to_end.set()
    thread.join()
    assert sys.getswitchinterval() == before
    assert gc.isenabled()


def test_what_is_freed_gradually_is_empty() -> None:
    values, fields = [1, 2], {"a": 1}
    free_lists(values, [])
    free_dicts(fields)
    assert (values, fields) == ([], {})
