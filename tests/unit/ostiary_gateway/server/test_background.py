"""Background work goes on after a failure, and ends when it is stopped."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.server.background import BackgroundTasks, Work
from ostiary_gateway.testing import FakeClock


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ProviderError("unavailable", cause="disk full"), "disk full"),
        (ProviderError("gone"), "gone"),
        (OSError("secret"), "OSError"),
    ],
)
async def test_work_that_failed_is_started_again_and_the_failure_is_logged(
    caplog: pytest.LogCaptureFixture, error: Exception, cause: str
) -> None:
    started_again = asyncio.Event()
    attempts: list[int] = []

    async def work() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise error
        started_again.set()
        await asyncio.Event().wait()

    tasks = BackgroundTasks(asyncio.get_running_loop(), retry_seconds=0)
    with caplog.at_level(logging.ERROR, "ostiary.gateway"):
        tasks.keep_running("watching a file", work)
        await started_again.wait()
    await tasks.stop()
    (record,) = caplog.records
    assert record.getMessage() == "watching a file failed; retrying"
    assert vars(record)["cause"] == cause


async def test_an_outage_is_logged_when_it_begins_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock, attempts, enough = FakeClock(), 0, asyncio.Event()

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        clock.advance(seconds=1)
        if attempts == 150:
            enough.set()
            await asyncio.Event().wait()
        raise ProviderError("unavailable", cause="no connection")

    with caplog.at_level(logging.ERROR, "ostiary.gateway"):
        await _run(work, clock, enough)
    assert [vars(record).get("left_out", 0) for record in caplog.records] == [0, 59, 59]


async def test_work_that_fails_again_after_it_has_run_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, attempts, enough = FakeClock(), 0, asyncio.Event()

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        # The first outage lasts two attempts. Then it runs for some minutes.
        clock.advance(seconds=300 if attempts == 3 else 1)
        if attempts == 5:
            enough.set()
            await asyncio.Event().wait()
        raise ProviderError("unavailable", cause="no connection")

    with caplog.at_level(logging.ERROR, "ostiary.gateway"):
        await _run(work, clock, enough)
    assert len(caplog.records) == 2
    assert "left_out" not in vars(caplog.records[1])


async def _run(work: Work, clock: FakeClock, enough: asyncio.Event) -> None:
    tasks = BackgroundTasks(asyncio.get_running_loop(), clock=clock, retry_seconds=0)
    tasks.keep_running("following revocations", work)
    await enough.wait()
    await tasks.stop()


async def test_stopping_waits_until_the_work_has_cleaned_up() -> None:
    running, cleaned = asyncio.Event(), []

    async def work() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    tasks = BackgroundTasks(asyncio.get_running_loop())
    tasks.keep_running("waiting", work)
    await running.wait()
    await tasks.stop()
    assert cleaned == [True]
    await tasks.stop()
