"""One batch at a collector: what it gets, what its answer may be, and how it is trusted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar

import httpx2
import trustme

from ostiary_gateway.observability.otlp import LARGEST_ANSWER, OtlpCollector, OtlpEncoder, rejected_spans
from ostiary_gateway.observability.tracing import Span, SpanKind
from tests.support.collector import collecting, plain
from tests.support.http1 import Script, Upstreamed, upstream
from tests.unit.ostiary_gateway.observability.test_otlp_exporter import CONTEXT, SPAN, Counted, Exporting, running


async def test_a_span_arrives_as_it_was_recorded(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("X-Api-Key: first\n")
    span = Span(
        CONTEXT,
        "00f067aa0ba902b7",
        "GET",
        SpanKind.CLIENT,
        1000.25,
        1000.5,
        {"text": "t", "number": 200, "yes": True},
        links=(CONTEXT._replace(span_id="1" * 16),),
        failed=True,
    )
    with collecting() as collector:
        async with running(Exporting(collector.url, headers_file=headers)) as exporting:
            exporting.exporter.put([span])
            await exporting.until_counted(1, {})
            headers.write_text("X-Api-Key: second\n")
            exporting.exporter.put([SPAN])
            await exporting.until_counted(2, {})
        first, second = collector.spans
        assert first.trace_id.hex() == CONTEXT.trace_id
        assert first.span_id.hex() == CONTEXT.span_id
        assert first.parent_span_id.hex() == "00f067aa0ba902b7"
        assert (first.name, first.kind, first.trace_state) == ("GET", 3, "a=1")
        assert (first.start_time_unix_nano, first.end_time_unix_nano) == (1000_250_000_000, 1000_500_000_000)
        assert plain(first.attributes) == {"text": "t", "number": 200, "yes": True}
        assert [link.span_id.hex() for link in first.links] == ["1" * 16]
        assert (first.status.code, second.status.code) == (2, 0)
        assert (second.parent_span_id, list(second.links)) == (b"", [])
        assert collector.resource == {"service.name": "gateway"}
        assert [each["x-api-key"] for each in collector.headers] == ["first", "second"]


async def test_requests_are_served_while_a_large_batch_is_encoded() -> None:
    class Noting(OtlpEncoder):
        sizes: ClassVar[list[tuple[int, int]]] = []

        def encode(self, spans: Sequence[Span]) -> bytes:
            self.sizes.append((len(spans), turns))
            return super().encode(spans)

    turns = 0

    async def serve_requests() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    serving = asyncio.ensure_future(serve_requests())
    with collecting() as collector:
        client = httpx2.AsyncClient(trust_env=False)
        encoder = Noting({"service.name": "gateway"}, scope="test", version="1")
        posting = OtlpCollector(
            collector.url, client=client, encoder=encoder, rejected_spans=rejected_spans, seconds=30
        )
        answer = await posting.post([SPAN] * 70)
        await posting.close()
        assert (answer.status, answer.rejected, len(collector.spans), collector.posts) == (200, 0, 70, 1)
    serving.cancel()
    assert [size for size, _ in Noting.sizes] == [32, 32, 6]
    assert len({turn for _, turn in Noting.sizes}) == 3


async def test_a_headers_file_that_is_gone_keeps_spans_from_being_sent_without_it(tmp_path: Path) -> None:
    with collecting() as collector:
        async with running(Exporting(collector.url, headers_file=tmp_path / "none")) as exporting:
            exporting.exporter.put([SPAN])
            await exporting.until_counted(0, {"unavailable": 1})
        assert collector.posts == 0


async def test_an_answer_that_never_ends_does_not_fill_the_memory_and_one_that_never_comes_is_given_up() -> None:
    async def endless(connection: Upstreamed) -> None:
        await connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.send((b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * (2 * LARGEST_ANSWER // 0x8000))
        await connection.rest()

    async def silent(connection: Upstreamed) -> None:
        await connection.request()
        await connection.rest()

    cases: list[tuple[Script, float, Counted]] = [
        (endless, 30.0, (1, {})),
        (silent, 0.01, (0, {"unavailable": 1})),
    ]
    for script, seconds, counted in cases:
        async with upstream(script) as made, AsyncExitStack() as stack:
            exporting = Exporting(f"http://127.0.0.1:{made.port}/v1/traces", seconds=seconds)
            await stack.enter_async_context(running(exporting))
            exporting.exporter.put([SPAN])
            await exporting.until_counted(*counted)


async def test_the_collector_is_trusted_by_its_authority() -> None:
    ca, other = trustme.CA(), trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("localhost").configure_cert(server)
    with collecting(server) as collector:
        cases: list[tuple[trustme.CA, Counted]] = [(ca, (1, {})), (other, (0, {"unavailable": 1}))]
        for authority, counted in cases:
            trust = ssl.create_default_context()
            authority.configure_trust(trust)
            async with running(Exporting(collector.url, tls=trust)) as exporting:
                exporting.exporter.put([SPAN])
                await exporting.until_counted(*counted)
