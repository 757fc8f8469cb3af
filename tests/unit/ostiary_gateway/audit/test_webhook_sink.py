"""Audit events to a webhook: a real HTTP server; what was accepted is posted or counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import AuditUnavailable
from ostiary_gateway.audit.batched import BatchedSink
from ostiary_gateway.audit.webhook_sink import WebhookAudit
from ostiary_gateway.interfaces.audit import Batches
from ostiary_gateway.testing import FakeClock
from tests.support.audit_webhook import Webhook

SinkTo = Callable[..., BatchedSink]
A, B = '{"a":1}\n', '{"b":2}\n'


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook().running() as made:
        yield made


@pytest.fixture
def sink_to(clock: FakeClock) -> SinkTo:
    """The provider behind its batches. It waits by turning the clock; `paused` tells for how long each time."""

    def make(
        url: str,
        paused: list[float] | None = None,
        *,
        blocking: bool = False,
        batches: Batches | None = None,
        **options: Any,
    ) -> BatchedSink:
        async def pause(seconds: float) -> None:
            clock.advance(seconds)
            if paused is not None:
                paused.append(seconds)

        provider = WebhookAudit(url, batches=batches, clock=clock, pause=pause, **options)
        provider.begin(blocking=blocking)
        return BatchedSink(provider, name="webhook", blocking=blocking)

    return make


def numbered(count: int) -> list[str]:
    return [f'{{"n":{number}}}\n' for number in range(count)]


async def test_events_are_posted_in_batches(webhook: Webhook, sink_to: SinkTo) -> None:
    """2.7: 400 in a batch."""
    sink = sink_to(webhook.url)
    for line in numbered(1000):
        sink.accept(line)
    await sink.close()
    assert [len(batch["items"]) for batch in webhook.batches] == [400, 400, 200]
    assert [event["n"] for event in webhook.events] == list(range(1000))
    assert {batch["kind"] for batch in webhook.batches} == {"EventList"}
    assert webhook.requests[0].headers["content-type"] == "application/json"
    assert sink.dropped == 0


async def test_a_few_events_are_posted_when_their_time_has_come(webhook: Webhook, sink_to: SinkTo) -> None:
    """2.7."""
    sink = sink_to(webhook.url, batches=Batches(seconds=0))
    sink.accept(A)
    while not webhook.batches:
        await asyncio.sleep(0.001)
    assert webhook.events == [{"a": 1}]
    await sink.close()


async def test_what_does_not_fit_into_the_buffer_is_dropped_and_counted(
    webhook: Webhook, sink_to: SinkTo, caplog: pytest.LogCaptureFixture
) -> None:
    """2.7, T2: 10000 by default."""
    sink = sink_to(webhook.url)
    for line in numbered(10_007):
        sink.accept(line)
    assert sink.dropped == 7
    assert caplog.text.count("audit events are dropped") == 1
    await sink.close()
    # A batch whose answer came too late is sent again, so an event may arrive twice.
    assert {event["n"] for event in webhook.events} == set(range(10_000))


async def test_a_blocking_webhook_refuses_what_does_not_fit(webhook: Webhook, sink_to: SinkTo) -> None:
    """2.7."""
    sink = sink_to(webhook.url, blocking=True, batches=Batches(buffer=1))
    sink.accept(A)
    with pytest.raises(AuditUnavailable):
        sink.accept(B)
    await sink.close()
    assert sink.dropped == 0


async def test_the_webhook_is_not_called_more_often_than_allowed(webhook: Webhook, sink_to: SinkTo) -> None:
    """2.7: ten a second, fifteen at once."""
    paused: list[float] = []
    sink = sink_to(webhook.url, paused, batches=Batches(size=1))
    for line in numbered(25):
        sink.accept(line)
    await sink.close()
    assert len(webhook.batches) == 25
    assert len(paused) == 10
    assert sum(paused) == pytest.approx(1.0)


@pytest.mark.parametrize("code", [500, 503, 429])
async def test_a_failing_webhook_is_tried_again_with_longer_and_longer_pauses(
    webhook: Webhook, sink_to: SinkTo, code: int
) -> None:
    paused: list[float] = []
    webhook.answers = [code] * 3
    sink = sink_to(webhook.url, paused)
    sink.accept(A)
    await sink.close()
    assert webhook.events == [{"a": 1}]
    assert paused == [1, 2, 4]
    assert sink.dropped == 0


async def test_a_webhook_that_says_no_is_not_asked_again(
    webhook: Webhook, sink_to: SinkTo, caplog: pytest.LogCaptureFixture
) -> None:
    webhook.answers = [400]
    sink = sink_to(webhook.url)
    sink.accept(A)
    await sink.close()
    assert len(webhook.requests) == 1
    assert sink.dropped == 1
    assert [record.levelno for record in caplog.records if record.name.startswith("ostiary")] == [logging.ERROR]


async def test_a_webhook_that_cannot_be_reached_ends_nothing(sink_to: SinkTo, caplog: pytest.LogCaptureFixture) -> None:
    paused: list[float] = []
    sink = sink_to("http://user:canary@127.0.0.1:1/?token=canary", paused)
    sink.accept(A)
    await sink.flush()
    assert sink.dropped == 1
    assert len(paused) == 4, "tried five times"
    assert not any("canary" in str(vars(record)) for record in caplog.records)
    await sink.close()


async def test_the_token_is_read_for_every_batch(webhook: Webhook, sink_to: SinkTo, tmp_path: Path) -> None:
    file = tmp_path / "token"
    sink = sink_to(webhook.url, token_file=file)
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        sink.accept(A)
        await sink.flush()
    assert [request.headers["authorization"] for request in webhook.requests] == ["Bearer first", "Bearer second"]
    await sink.close()


async def test_after_closing_an_event_is_counted_as_dropped(webhook: Webhook, sink_to: SinkTo) -> None:
    sink = sink_to(webhook.url)
    await sink.close()
    await sink.close()
    sink.accept(A)
    assert sink.dropped == 1
