"""Background work goes on after a failure, and ends when it is stopped."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ostiary.errors import ProviderError
from ostiary.gateway.process.app.background import BackgroundTasks


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
