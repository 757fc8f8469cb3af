"""One run per key, any number of waiters, and an outcome for each of them whatever goes wrong."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from ostiary.core.single_flight import SingleFlight, in_thread, landing, wait
from ostiary.errors import CredentialError


@pytest.fixture
def flights() -> SingleFlight[Future[str]]:
    return SingleFlight(thread_name="test")


@contextmanager
def no_thread_left() -> Iterator[None]:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        yield


def settle_nothing(result: Any, error: BaseException | None) -> None:
    pass


def start(flights: SingleFlight[Future[str]], work: Callable[[], str], key: str = "") -> Future[str]:
    with flights.lock:
        return flights.running(key) or flights.start(Future(), work, settle=settle_nothing, key=key)


def test_callers_that_come_while_a_run_is_under_way_wait_for_the_same_future(
    flights: SingleFlight[Future[str]],
) -> None:
    go = threading.Event()
    runs: list[str] = []

    def work() -> str:
        go.wait(30)
        runs.append("run")
        return "done"

    futures = [start(flights, work) for _ in range(20)]
    other = start(flights, lambda: "other", key="other")
    go.set()
    assert {wait(future) for future in futures} == {"done"}
    assert (runs, wait(other)) == (["run"], "other")
    assert flights.running("") is None


def test_the_outcome_is_settled_before_any_waiter_wakes_and_before_a_new_run_can_start() -> None:
    flights: SingleFlight[Future[str]] = SingleFlight(thread_name="test")
    order: list[object] = []

    def settle(result: Any, error: BaseException | None) -> None:
        order.append((result, flights.running() is not None))

    with flights.lock:
        future = flights.start(Future(), lambda: "done", settle=settle)
        future.add_done_callback(lambda _: order.append("awake"))
    wait(future)
    assert order == [("done", True), "awake"]


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_the_work_raises_reaches_every_waiter(
    flights: SingleFlight[Future[str]], raised: BaseException
) -> None:
    go = threading.Event()

    def work() -> str:
        go.wait(30)
        raise raised

    futures = [start(flights, work) for _ in range(3)]
    go.set()
    assert [future.exception(30) for future in futures] == [raised] * 3
    assert flights.running("") is None


def test_a_settle_that_raises_is_the_outcome_and_nobody_waits_for_ever() -> None:
    flights: SingleFlight[Future[str]] = SingleFlight(thread_name="test")
    broken = ValueError("broken")

    def settle(result: Any, error: BaseException | None) -> None:
        raise broken

    with flights.lock:
        future = flights.start(Future(), lambda: "done", settle=settle)
    assert future.exception(30) is broken
    assert flights.running() is None


def test_a_thread_that_cannot_be_started_is_the_outcome_and_the_next_caller_starts_anew(
    flights: SingleFlight[Future[str]],
) -> None:
    with no_thread_left():
        future = start(flights, lambda: "done")
    with pytest.raises(CredentialError) as failure:
        wait(future)
    assert failure.value.code == "thread-limit-reached"
    assert wait(start(flights, lambda: "done")) == "done"


def test_work_that_is_not_shared_fails_alike_when_no_thread_can_be_started() -> None:
    with no_thread_left(), pytest.raises(CredentialError, match="no credential could be obtained"):
        wait(in_thread(lambda: "done", name="test"))
    assert wait(in_thread(lambda: "done", name="test")) == "done"


def test_a_landing_tells_only_that_a_run_is_over(flights: SingleFlight[Future[str]]) -> None:
    failed: Future[str] = Future()
    over = landing(failed)
    failed.set_exception(ValueError("secret"))
    assert over.result(30) is None


def test_after_a_fork_the_childs_callers_do_not_wait_for_a_run_of_the_parent(
    flights: SingleFlight[Future[str]],
) -> None:
    go = threading.Event()

    def work() -> str:
        go.wait(30)
        return "parent"

    parents = start(flights, work)
    with flights.lock:
        child = os.fork()
        if child == 0:
            status = 1
            # A child that waits for ever must not make the test do so.
            signal.alarm(60)
            try:
                status = 0 if wait(start(flights, lambda: "child")) == "child" else 2
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go.set()
    assert wait(parents) == "parent"
