"""Makes what the traces of requests need: the tracer, the exporter, and the collector that the configuration names.

Called by the app where tracing is configured. Everything is imported only then: without tracing there is nothing of it
in the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from ostiary import __version__
from ostiary.core.clock import Clock
from ostiary.core.settings.outgoing import client_context
from ostiary.gateway.audit.source_ips import is_trusted
from ostiary.gateway.config.settings import GatewayConfig, Parents, Tracing
from ostiary.gateway.observe.metrics import Metrics

if TYPE_CHECKING:
    from ostiary.gateway.http1.headers import HeaderFilter
    from ostiary.gateway.observe.tracing.exporter import SpanExporter
    from ostiary.gateway.request.engine import Engine, EngineParts

# Peers whose trust is remembered: a network is asked about with every request.
MOST_PEERS = 4096


class RequestTracing:
    """Tracing as one configuration has it."""

    def __init__(self, settings: Tracing, config: GatewayConfig, clock: Clock, metrics: Metrics) -> None:
        from ostiary.gateway.observe.tracing.tracer import Tracer
        from ostiary.gateway.request.traced.passage import RequestTraces

        self._config = config
        self.exporter = _exporter(settings, clock, metrics)
        tracer = Tracer(self.exporter.put, clock, ratio=settings.ratio, trusts=_trusts(settings, config))
        self._traces = RequestTraces(tracer, config.listen.trusted_proxies, settings.user_names)

    def header_filter(self) -> HeaderFilter:
        from ostiary.gateway.request.traced.headers import TracedHeaderFilter

        config = self._config
        return TracedHeaderFilter((each.headers for each in config.upstreams), drop=config.listen.drop_headers)

    def engine(self, parts: EngineParts, loop: asyncio.AbstractEventLoop) -> Engine:
        from ostiary.gateway.request.traced.engine import TracedEngine

        return TracedEngine(parts, loop, self._traces)


def open_tracing(config: GatewayConfig, clock: Clock, metrics: Metrics) -> RequestTracing | None:
    """None if nothing is traced. Raises `TransportError` if a TLS file cannot be used."""
    return None if config.tracing is None else RequestTracing(config.tracing, config, clock, metrics)


def _trusts(settings: Tracing, config: GatewayConfig) -> Callable[[str], bool]:
    match settings.parents:
        case Parents.ALWAYS:
            return lambda address: True
        case Parents.NEVER:
            return lambda address: False
        case Parents.TRUSTED_PROXIES:
            return lru_cache(MOST_PEERS)(lambda address: is_trusted(address, config.listen.trusted_proxies))


def _exporter(settings: Tracing, clock: Clock, metrics: Metrics) -> SpanExporter:
    import httpx2

    from ostiary.gateway.observe.tracing.collector import OtlpCollector
    from ostiary.gateway.observe.tracing.exporter import SpanExporter
    from ostiary.gateway.observe.tracing.otlp import OtlpEncoder, rejected_spans

    resource: dict[str, str | int | bool] = {
        "service.name": settings.service_name,
        "service.version": __version__,
        # One for each worker: what it counts and drops is its own.
        "service.instance.id": os.urandom(16).hex(),
        "process.pid": os.getpid(),
    }
    context = client_context(settings.tls) if settings.endpoint.startswith("https:") else True
    collector = OtlpCollector(
        settings.endpoint,
        client=httpx2.AsyncClient(verify=context, trust_env=False),
        encoder=OtlpEncoder(resource, scope="ostiary.gateway", version=__version__),
        rejected_spans=rejected_spans,
        seconds=settings.timeout.total_seconds(),
        headers_file=settings.headers_file,
    )
    return SpanExporter(
        collector,
        clock,
        sent=metrics.spans_sent,
        dropped=metrics.spans_dropped,
        buffer=settings.buffer,
        batch=settings.batch,
        wait=settings.wait.total_seconds(),
    )
