"""Work is done in one thread with a loop of its own, which ends when it is told to."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ostiary_gateway.audit.batched import ProviderThread

WAIT_SECONDS = 20.0


def threads_called(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def test_work_of_one_provider_is_done_in_one_thread_and_its_errors_come_back() -> None:
    thread, idents = ProviderThread("of-test-1"), []

    async def note() -> None:
        idents.append(threading.get_ident())

    async def fail() -> None:
        raise LookupError

    assert threads_called("ostiary-of-test-1") == []
    await thread.run(note, WAIT_SECONDS)
    await thread.run(note, WAIT_SECONDS)
    with pytest.raises(LookupError):
        await thread.run(fail, WAIT_SECONDS)
    assert len(set(idents)) == 1
    (running,) = threads_called("ostiary-of-test-1")
    assert running.daemon, "a provider that hangs does not keep the process from ending"
    thread.stop()
    await asyncio.to_thread(running.join, WAIT_SECONDS)
    assert not running.is_alive()
    thread.stop()


async def test_work_that_takes_too_long_is_cancelled() -> None:
    thread, cancelled = ProviderThread("of-test-2"), threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        await thread.run(forever, 0.05)
    assert await asyncio.to_thread(cancelled.wait, WAIT_SECONDS)
    thread.stop()
