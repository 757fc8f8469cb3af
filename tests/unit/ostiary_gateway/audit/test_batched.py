"""Events for a provider go in batches, in a thread of its own: one that is slow or fails holds up nobody (S70)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from ostiary.errors import AuditUnavailable
from ostiary_gateway.audit.batched import BatchedSink
from ostiary_gateway.interfaces.audit import Batches

LINES = [f'{{"n":{number}}}\n' for number in range(10)]
CANARY = "canary-7c1d"
WAIT_SECONDS = 20.0


class Provider:
    """Keeps events; `gate` holds it up, without giving way to anybody in its thread."""

    def __init__(self, *, size: int = 2, buffer: int = 100, seconds: float = 3600.0) -> None:
        self.batches = Batches(buffer, size, seconds)
        self.kept: list[str] = []
        self.sizes: list[int] = []
        self.threads: set[int] = set()
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.closed = 0

    async def store(self, events: Sequence[str]) -> None:
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.gate.wait(WAIT_SECONDS)
        if self.error is not None:
            raise self.error
        self.sizes.append(len(events))
        self.kept += events

    async def close(self) -> None:
        self.closed += 1


async def test_batches_are_stored_in_order_by_another_thread() -> None:
    provider = Provider()
    sink = BatchedSink(provider, name="acme")
    for line in LINES[:5]:
        sink.accept(line)
    await sink.flush()
    assert (provider.kept, provider.sizes, sink.dropped) == (LINES[:5], [2, 2, 1], 0)
    assert len(provider.threads) == 1
    assert threading.get_ident() not in provider.threads
    await sink.close()
    await sink.close()
    assert provider.closed == 1


async def test_a_provider_that_waits_without_giving_way_does_not_stop_the_loop() -> None:
    """S70: a slow provider cannot hold up the door."""
    provider = Provider(buffer=3)
    provider.gate.clear()
    sink = BatchedSink(provider, name="acme")
    sink.accept(LINES[0])
    sink.accept(LINES[1])
    while not provider.entered.is_set():
        await asyncio.sleep(0)
    # The provider hangs in the middle of the first batch, and this loop goes on.
    for line in LINES[2:]:
        sink.accept(line)
    assert sink.dropped == 5
    provider.gate.set()
    await sink.close()
    assert provider.kept == LINES[:5]


async def test_blocking_a_request_is_refused_when_no_more_can_wait() -> None:
    """S70: `audit.blocking` keeps its meaning."""
    provider = Provider(buffer=1)
    sink = BatchedSink(provider, name="acme", blocking=True)
    sink.accept(LINES[0])
    with pytest.raises(AuditUnavailable) as caught:
        sink.accept(LINES[1])
    assert caught.value.cause == '1 events wait for "acme"'
    await sink.close()
    assert (provider.kept, sink.dropped) == (LINES[:1], 0)


@pytest.mark.parametrize("error", [RuntimeError(CANARY), AuditUnavailable("no", cause="the queue is gone")])
async def test_a_provider_that_raises_loses_its_batch_alone(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """S70. A foreign exception may hold a password."""
    provider = Provider()
    provider.error = error
    sink = BatchedSink(provider, name="acme")
    sink.accept(LINES[0])
    await sink.flush()
    provider.error = None
    sink.accept(LINES[1])
    await sink.close()
    assert (sink.dropped, provider.kept) == (1, [LINES[1]])
    (record,) = [record for record in caplog.records if "audit events are lost" in record.getMessage()]
    assert record.__dict__["cause"] in ("RuntimeError", "the queue is gone")
    assert CANARY not in str([vars(each) for each in caplog.records])


async def test_a_batch_that_takes_too_long_is_lost_and_the_next_one_is_tried() -> None:
    class Forever(Provider):
        async def store(self, events: Sequence[str]) -> None:
            if not self.sizes:
                self.sizes.append(0)
                await asyncio.Event().wait()
            await super().store(events)

    provider = Forever()
    sink = BatchedSink(provider, name="acme", store_seconds=0.05)
    sink.accept(LINES[0])
    await sink.flush()
    assert sink.dropped == 1
    # On a busy machine a good batch may take too long as well.
    while not provider.kept:
        sink.accept(LINES[1])
        await sink.flush()
    await sink.close()
    assert provider.kept[0] == LINES[1]


async def test_a_few_events_are_stored_when_their_time_has_come() -> None:
    provider = Provider(size=100, seconds=0.0)
    sink = BatchedSink(provider, name="acme")
    sink.accept(LINES[0])
    async with asyncio.timeout(WAIT_SECONDS):
        while not provider.kept:
            await asyncio.sleep(0.001)
    await sink.close()


async def test_a_provider_without_batches_and_without_close_has_the_defaults() -> None:
    class Plain:
        def __init__(self) -> None:
            self.kept: list[str] = []

        async def store(self, events: Sequence[str]) -> None:
            self.kept += events

    provider = Plain()
    sink = BatchedSink(provider, name="acme")
    for line in LINES:
        sink.accept(line)
    await sink.close()
    sink.accept(LINES[0])
    assert (provider.kept, sink.dropped) == (LINES, 1)


async def test_a_provider_that_fails_to_close_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Provider):
        async def close(self) -> None:
            raise RuntimeError(CANARY)

    sink = BatchedSink(Stubborn(), name="acme")
    await sink.close()
    assert "an audit provider fails to close" in caplog.messages
    assert CANARY not in str([vars(each) for each in caplog.records])
