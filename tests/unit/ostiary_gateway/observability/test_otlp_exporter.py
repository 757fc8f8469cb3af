"""Spans on their way to a collector, a real HTTP server: sent or counted, and never waited for."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ostiary_gateway.observability.metrics import Counter
from ostiary_gateway.observability.otlp import OtlpCollector, OtlpEncoder, SpanExporter, rejected_spans
from ostiary_gateway.observability.tracing import Span, SpanKind, TraceContext
from ostiary_gateway.testing import FakeClock
from tests.support.collector import collecting
from tests.support.http1 import Upstreamed, turn, until, upstream

CONTEXT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True, "a=1")
SPAN = Span(CONTEXT, "", "GET", SpanKind.SERVER, 1000.0, 1000.5)
# How many spans were sent, and how many dropped for which reason.
Counted = tuple[float, dict[str, float]]


class Exporting:
    """An exporter, and what it has counted. Between attempts it does not wait, and notes how long it would."""

    def __init__(self, url: str, *, headers_file: Path | None = None, tls: ssl.SSLContext | None = None, **more: Any):
        self.clock = FakeClock()
        self.sent, self.dropped = Counter("sent", ""), Counter("dropped", "", ("reason",))
        self.pauses: list[float] = []
        collector = OtlpCollector(
            url,
            client=httpx2.AsyncClient(verify=tls or True, trust_env=False),
            encoder=OtlpEncoder({"service.name": "gateway"}, scope="test", version="1"),
            rejected_spans=rejected_spans,
            seconds=more.pop("seconds", 30.0),
            headers_file=headers_file,
        )
        settings = {"buffer": 100, "batch": 1, "wait": 3600.0, **more}
        self.exporter = SpanExporter(
            collector, self.clock, sent=self.sent, dropped=self.dropped, pause=self.pause, **settings
        )

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    def counted(self) -> Counted:
        return self.sent.values.get((), 0), {reason: count for (reason,), count in self.dropped.values.items()}

    async def until_counted(self, sent: float, dropped: dict[str, float]) -> None:
        await until(lambda: self.counted() == (sent, dropped))


@asynccontextmanager
async def running(exporting: Exporting) -> AsyncIterator[Exporting]:
    task = asyncio.ensure_future(exporting.exporter.run())
    try:
        yield exporting
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await exporting.exporter.close()


async def test_spans_go_in_batches_when_there_are_enough_or_when_the_time_is_up() -> None:
    with collecting() as collector:
        async with running(Exporting(collector.url, batch=2)) as exporting:
            exporting.exporter.put([SPAN])
            await turn(20)
            assert collector.posts == 0
            exporting.exporter.put([SPAN, SPAN])
            await exporting.until_counted(3, {})
            assert collector.posts == 2
        async with running(Exporting(collector.url, batch=100, wait=0.01)) as exporting:
            exporting.exporter.put([SPAN])
            await exporting.until_counted(1, {})


async def test_what_does_not_fit_into_the_buffer_is_dropped_a_whole_request_at_a_time() -> None:
    exporting = Exporting("http://127.0.0.1:1/v1/traces", buffer=5, batch=100)
    for _ in range(3):
        exporting.exporter.put([SPAN, SPAN])
    assert exporting.counted() == (0, {"buffer": 2})
    exporting.exporter.put([SPAN])
    assert exporting.counted() == (0, {"buffer": 2})


@pytest.mark.parametrize("code", [429, 502, 503, 504])
async def test_a_collector_that_is_busy_is_asked_again(code: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    with collecting() as collector:
        collector.answers = [code, code, code]
        async with running(Exporting(collector.url)) as exporting:
            exporting.exporter.put([SPAN])
            await exporting.until_counted(1, {})
        assert exporting.pauses == [1.0, 2.0, 4.0]
        assert collector.posts == 4
    assert [record.getMessage() for record in caplog.records] == [
        "the collector of traces does not accept spans",
        "the collector of traces accepts spans again",
    ]
    assert caplog.records[0].__dict__["cause"] == f"it answered {code}"
    assert caplog.records[1].__dict__["left_out"] == 2


async def test_a_batch_that_a_collector_refuses_is_not_sent_again(subtests: pytest.Subtests) -> None:
    for code in [301, 400, 401, 404, 413, 500]:
        with subtests.test(code=code), collecting() as collector:
            collector.answers = [code]
            async with running(Exporting(collector.url)) as exporting:
                exporting.exporter.put([SPAN, SPAN])
                await exporting.until_counted(1, {"refused": 1})
            assert exporting.pauses == []


async def test_a_dead_collector_is_logged_once_in_a_while_and_every_span_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Exporting("http://user:secret@127.0.0.1:1/v1/traces")) as exporting:
        for number in range(1, 6):
            exporting.exporter.put([SPAN])
            await exporting.until_counted(0, {"unavailable": number})
        assert len(caplog.records) == 1
        exporting.clock.advance(10)
        exporting.exporter.put([SPAN])
        await exporting.until_counted(0, {"unavailable": 6})
    assert [record.__dict__.get("left_out") for record in caplog.records] == [None, 19]
    assert "secret" not in caplog.text
    assert "secret" not in str([record.__dict__ for record in caplog.records])


async def test_spans_that_a_collector_rejects_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        collector.rejects = 2
        async with running(Exporting(collector.url, batch=3)) as exporting:
            exporting.exporter.put([SPAN, SPAN, SPAN])
            await exporting.until_counted(1, {"refused": 2})
            collector.rejects = 1000
            exporting.exporter.put([SPAN, SPAN, SPAN])
            await exporting.until_counted(1, {"refused": 5})
    assert [record.getMessage() for record in caplog.records] == ["the collector of traces rejects spans"]


async def test_a_gateway_that_stops_sends_what_is_left_and_drops_what_nobody_takes() -> None:
    with collecting() as collector:
        exporting = Exporting(collector.url, batch=2)
        exporting.exporter.put([SPAN] * 5)
        await exporting.exporter.close()
        assert exporting.counted() == (5, {})
        assert len(collector.spans) == 5
        exporting.exporter.put([SPAN])
        await exporting.exporter.close()
        assert exporting.counted() == (5, {"buffer": 1})
    exporting = Exporting("http://127.0.0.1:1/v1/traces", batch=2)
    exporting.exporter.put([SPAN] * 5)
    await exporting.exporter.close()
    assert exporting.counted() == (0, {"unavailable": 2, "stopped": 3})
    assert exporting.pauses == []


@pytest.mark.parametrize("answers", [False, True])
async def test_a_batch_that_is_under_way_when_sending_is_stopped_arrives_once_or_is_counted(answers: bool) -> None:
    go_on = asyncio.Event()

    async def slow(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.request())
        await go_on.wait()
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with upstream(slow) as made:
        exporting = Exporting(f"http://127.0.0.1:{made.port}/v1/traces", batch=2)
        sending = asyncio.ensure_future(exporting.exporter.run())
        exporting.exporter.put([SPAN] * 2)
        await until(lambda: bool(made.requests))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        if answers:
            asyncio.get_running_loop().call_soon(go_on.set)
        await exporting.exporter.close(seconds=30 if answers else 0.01)
        assert len(made.requests) == 1
        assert exporting.counted() == ((2, {}) if answers else (0, {"stopped": 2}))


async def test_what_waits_and_what_still_comes_is_sent_by_whoever_takes_over() -> None:
    names = [f"{number}" for number in range(7)]
    with collecting() as collector:
        old, new = Exporting("http://127.0.0.1:1/v1/traces", batch=100), Exporting(collector.url, batch=100, buffer=6)
        old.exporter.put([replace(SPAN, name=name) for name in names[:5]])
        old.exporter.hand_over(new.exporter)
        for name in names[5:]:
            old.exporter.put([replace(SPAN, name=name)])
        await old.exporter.close()
        await new.exporter.close()
        assert [span.name for span in collector.spans] == names[:6]
        assert (old.counted(), new.counted()) == ((0, {}), (6, {"buffer": 1}))


async def test_a_gateway_that_stops_does_not_wait_for_a_collector_that_says_nothing() -> None:
    async def silent(connection: Upstreamed) -> None:
        await connection.request()
        await connection.rest()

    async with upstream(silent) as made:
        exporting = Exporting(f"http://127.0.0.1:{made.port}/v1/traces", batch=2)
        exporting.exporter.put([SPAN] * 5)
        await exporting.exporter.close(seconds=0.01)
        assert exporting.counted() == (0, {"stopped": 5})
