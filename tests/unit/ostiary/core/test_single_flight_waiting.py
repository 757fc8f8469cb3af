"""Waiting for another thread's work: from threads, from asyncio and from trio."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import trio

from ostiary.core.single_flight import wait, wait_async
from ostiary.errors import BackingOff, CredentialError, PluginFailed

Run = Callable[[Callable[[], Awaitable[Any]]], Any]
SECONDS = 30.0


def run_asyncio(function: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await function()

    return asyncio.run(main())


@pytest.fixture(params=[run_asyncio, trio.run], ids=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine function to its end in an event loop."""
    run: Run = request.param
    return run


@pytest.fixture
def future() -> Future[str]:
    return Future()


async def gather(*functions: Callable[[], Awaitable[Any]]) -> list[Any]:
    """What each returned or raised, in either kind of loop."""
    outcomes: list[Any] = [None] * len(functions)

    async def call(position: int) -> None:
        try:
            outcomes[position] = await functions[position]()
        except Exception as error:
            outcomes[position] = error

    async with trio_or_asyncio_group() as start:
        for position in range(len(functions)):
            start(call, position)
    return outcomes


class trio_or_asyncio_group:
    """The two libraries' task groups behind one small face."""

    async def __aenter__(self) -> Callable[..., object]:
        self._group: Any
        if in_trio():
            self._group = trio.open_nursery()
            nursery = await self._group.__aenter__()
            start: Callable[..., object] = nursery.start_soon
            return start
        self._group = asyncio.TaskGroup()
        group = await self._group.__aenter__()
        return lambda function, *args: group.create_task(function(*args))

    async def __aexit__(self, *error: Any) -> None:
        await self._group.__aexit__(*error)


def in_trio() -> bool:
    return trio.lowlevel.in_trio_run()


def failure() -> PluginFailed:
    error = PluginFailed("it failed", exit_code=7, cause="on purpose")
    error.__cause__ = CredentialError("the reason")
    return error


# --- threads ---


def test_a_thread_gets_the_result(future: Future[str]) -> None:
    future.set_result("done")
    assert wait(future) == "done"


def test_a_thread_waits_until_there_is_one(future: Future[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, future)
        assert not waiting.done()
        future.set_result("done")
        assert waiting.result(SECONDS) == "done"


def test_every_thread_gets_an_exception_object_of_its_own(future: Future[str]) -> None:
    original = failure()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(wait, future) for _ in range(4)]
        future.set_exception(original)
        errors = [each.exception(SECONDS) for each in waiting]
    assert_each_is_a_twin(errors, original)


def assert_each_is_a_twin(errors: list[Any], original: PluginFailed) -> None:
    assert len({id(error) for error in (*errors, original)}) == len(errors) + 1
    for error in errors:
        assert type(error) is PluginFailed
        assert (error.exit_code, str(error)) == (7, str(original))
        assert error.__cause__ is original.__cause__
    # Raising the original in many threads would have made one traceback of them all.
    assert len({id(error.__traceback__) for error in errors}) == len(errors)


def test_what_a_subclass_knows_is_kept(future: Future[str]) -> None:
    future.set_exception(BackingOff("not yet", retry_after=2.5))
    with pytest.raises(BackingOff) as caught:
        wait(future)
    assert caught.value.retry_after == 2.5


def test_an_exception_that_is_not_ours_comes_as_it_is(future: Future[str], run: Run) -> None:
    error = KeyError("not ours")
    future.set_exception(error)
    with pytest.raises(KeyError) as caught:
        wait(future)
    assert caught.value is error
    with pytest.raises(KeyError):
        run(lambda: wait_async(future))


# --- event loops ---


def test_a_result_that_is_there_already_is_given(future: Future[str], run: Run) -> None:
    future.set_result("done")
    assert run(lambda: wait_async(future)) == "done"


def test_a_result_of_another_thread_wakes_the_loop(future: Future[str], run: Run) -> None:
    entered = threading.Event()

    async def enter_and_wait() -> str:
        entered.set()
        return await wait_async(future)

    def work() -> None:
        assert entered.wait(SECONDS)
        future.set_result("done")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)
        assert run(enter_and_wait) == "done"


def test_the_loop_goes_on_while_one_of_its_tasks_waits(future: Future[str], run: Run) -> None:
    # Only another task of the same loop ends the wait: a loop that stood still would stand for ever.
    async def end_it() -> None:
        future.set_result("done")

    assert run(lambda: gather(lambda: wait_async(future), end_it)) == ["done", None]


def test_every_task_gets_an_exception_object_of_its_own(future: Future[str], run: Run) -> None:
    original = failure()

    async def fail() -> None:
        future.set_exception(original)

    waiters = [lambda: wait_async(future)] * 4
    *errors, _ = run(lambda: gather(*waiters, fail))
    assert_each_is_a_twin(errors, original)


def test_threads_and_loops_wait_for_the_same_work(future: Future[str]) -> None:
    loops: list[Run] = [run_asyncio, trio.run]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(wait, future), pool.submit(wait, future)]
        waiting += [pool.submit(run, lambda: wait_async(future)) for run in loops]
        future.set_result("done")
        assert [each.result(SECONDS) for each in waiting] == ["done"] * 4


# --- a waiter that gives up ---


async def give_up(future: Future[str]) -> None:
    """Begin to wait, and be cancelled while waiting."""
    if in_trio():
        with trio.CancelScope() as scope:
            trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)
            await wait_async(future)
        assert scope.cancelled_caught
        return
    waiting = asyncio.create_task(wait_async(future))
    # Tasks run in the order in which they were made, so by now it waits.
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_waiter_that_gives_up_does_not_cancel_the_work(future: Future[str], run: Run) -> None:
    async def one_gives_up_and_another_stays() -> list[Any]:
        async def give_up_then_finish() -> None:
            await give_up(future)
            assert not future.cancelled()
            assert future.set_running_or_notify_cancel()
            future.set_result("done")

        return await gather(lambda: wait_async(future), give_up_then_finish)

    assert run(one_gives_up_and_another_stays) == ["done", None]


@pytest.mark.parametrize("outcome", ["result", "error"])
def test_work_that_ends_after_its_loop_has_closed_disturbs_nobody(
    future: Future[str], run: Run, caplog: pytest.LogCaptureFixture, outcome: str
) -> None:
    caplog.set_level(logging.DEBUG)
    run(lambda: give_up(future))
    if outcome == "result":
        future.set_result("late")
        assert wait(future) == "late"
    else:
        future.set_exception(failure())
        with pytest.raises(PluginFailed):
            wait(future)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_error_that_nobody_waits_for_any_more_is_not_complained_about(
    future: Future[str], run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def give_up_then_fail() -> None:
        await give_up(future)
        future.set_exception(failure())

    run(give_up_then_fail)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
