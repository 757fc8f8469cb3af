"""Health and metrics endpoints, on a separate port: requests to the gateway's main port cannot reach them.

/livez, /healthz    this process responds        /readyz    it can serve: configuration, token store, upstreams
/metrics            the metrics of all workers, for Prometheus
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.http1.server_connection import Server, ServerConnection
from ostiary_gateway.observability.metrics import CONTENT_TYPE, render
from ostiary_gateway.observability.snapshots import Snapshot, merge

log = logging.getLogger("ostiary.gateway")

_TEXT = [(b"Content-Type", b"text/plain; charset=utf-8"), (b"X-Content-Type-Options", b"nosniff")]
_LIMITS = ServerLimits(head_bytes=8192, headers=50, pipelined=4, head_timeout=5.0, idle_timeout=60.0)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Readiness of a worker: the name of each check, and its error (empty if it passed).

    `unasked` names the upstreams without a health path, whose state is unknown.
    """

    checks: tuple[tuple[str, str], ...]
    unasked: frozenset[str] = frozenset()

    @property
    def ready(self) -> bool:
        return not any(trouble for _, trouble in self.checks)

    def text(self) -> str:
        rows = [self._row(name, trouble) for name, trouble in self.checks]
        return "\n".join([*rows, "ready" if self.ready else "not ready", ""])

    def _row(self, name: str, trouble: str) -> str:
        if trouble:
            return f"[-] {name}: {trouble}"
        return f"[ ] {name}: not asked, it has no health path" if name in self.unasked else f"[+] {name}"


class Health:
    """Respond to probes. *reports* and *snapshots* query every worker."""

    def __init__(
        self,
        reports: Callable[[], Awaitable[Sequence[HealthReport]]],
        snapshots: Callable[[], Awaitable[Sequence[Snapshot]]],
    ) -> None:
        self._reports = reports
        self._snapshots = snapshots
        self._http = Server(self._handle, _LIMITS, asyncio.get_running_loop())
        self._tasks: set[asyncio.Task[None]] = set()

    def connection(self) -> ServerConnection:
        """Return the protocol of one connection to the health port."""
        return self._http.connection()

    def close(self) -> None:
        for connection in list(self._http.connections):
            connection.transport.abort()

    def _handle(self, exchange: Exchange) -> None:
        task = exchange.connection.loop.create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._answer_probe(exchange)
        except Exception as error:
            log.error("a health probe could not be answered", extra={"cause": type(error).__name__})
            if not exchange.gone and not exchange.head_sent:
                exchange.respond(500, _TEXT, b"it could not be found out\n")

    async def _answer_probe(self, exchange: Exchange) -> None:
        path = exchange.request.target.partition(b"?")[0]
        if exchange.request.method not in (b"GET", b"HEAD"):
            exchange.respond(405, [*_TEXT, (b"Allow", b"GET, HEAD")], b"only GET\n")
        elif path in (b"/livez", b"/healthz"):
            exchange.respond(200, _TEXT, b"ok\n")
        elif path == b"/readyz":
            await self._ready(exchange)
        elif path == b"/metrics":
            body = render(merge(await self._snapshots()))
            if not exchange.gone:
                exchange.respond(200, [(b"Content-Type", CONTENT_TYPE.encode())], body)
        else:
            exchange.respond(404, _TEXT, b"there is nothing here; try /livez, /readyz or /metrics\n")

    async def _ready(self, exchange: Exchange) -> None:
        reports = await self._reports()
        good = bool(reports) and all(report.ready for report in reports)
        worst = next((report for report in reports if not report.ready), reports[0] if reports else HealthReport(()))
        if not exchange.gone:
            exchange.respond(200 if good else 503, _TEXT, worst.text().encode())
