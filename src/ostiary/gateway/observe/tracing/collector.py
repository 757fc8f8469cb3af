"""A collector that speaks OTLP/HTTP: one POST of protobuf for each batch of spans.

Called by the exporter. The headers file is read for every batch, because what is in it is replaced before it expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ostiary.gateway.observe.tracing.exporter import CollectorAnswer
from ostiary.gateway.observe.tracing.headers_file import read_headers
from ostiary.gateway.observe.tracing.spans import Span

if TYPE_CHECKING:
    import httpx2

    from ostiary.gateway.observe.tracing.otlp import OtlpEncoder

# More of an answer than this is not read: it says no more than how many spans were rejected.
LARGEST_ANSWER = 64 * 1024
# Encoding a span takes about 20 us. Requests must not wait for a whole batch of them.
SPANS_PER_TURN = 32
_PROTOBUF = "application/x-protobuf"


class OtlpCollector:
    def __init__(
        self,
        url: str,
        *,
        client: httpx2.AsyncClient,
        encoder: OtlpEncoder,
        rejected_spans: Callable[[bytes], int],
        seconds: float,
        headers_file: Path | None = None,
    ) -> None:
        self._url, self._client, self._encoder = url, client, encoder
        self._rejected_spans = rejected_spans
        self._seconds = seconds
        self._headers_file = headers_file

    async def post(self, spans: Sequence[Span]) -> CollectorAnswer:
        headers = {} if self._headers_file is None else read_headers(self._headers_file)
        headers["content-type"] = _PROTOBUF
        body = await self._encode(spans)
        async with asyncio.timeout(self._seconds):
            async with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                status, answer = response.status_code, b""
                if status != 200:
                    return CollectorAnswer(status)
                async for part in response.aiter_bytes():
                    answer += part
                    if len(answer) > LARGEST_ANSWER:
                        return CollectorAnswer(status)
        return CollectorAnswer(status, self._rejected_spans(answer))

    async def _encode(self, spans: Sequence[Span]) -> bytes:
        parts = []
        for start in range(0, len(spans), SPANS_PER_TURN):
            parts.append(self._encoder.encode(spans[start : start + SPANS_PER_TURN]))
            await asyncio.sleep(0)
        # Messages of protobuf one after the other are one message with what is in all of them.
        return b"".join(parts)

    async def close(self) -> None:
        await self._client.aclose()
