"""Makes the auditor that the configuration asks for, with its policy and its sinks.

Called by the app.
"""

from __future__ import annotations

from ostiary.core.clock import Clock
from ostiary.core.counting.counts import MachineCounts
from ostiary.gateway.audit.auditor import Auditor
from ostiary.gateway.audit.sinks.file import FileSink
from ostiary.gateway.audit.sinks.sink import Sink
from ostiary.gateway.audit.sinks.stdout import StdoutSink
from ostiary.gateway.audit.sinks.webhook import WebhookSink
from ostiary.gateway.config import settings
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.upstream.upstreams import client_context
from ostiary.interfaces.shared_counts import ImmediateCounts
from ostiary.wire.audit import DEFAULT_POLICY, load_policy


def open_auditor(config: GatewayConfig, clock: Clock, counts: ImmediateCounts) -> Auditor:
    """Raises `AuditUnavailable` if the audit log cannot be opened."""
    configured = config.audit
    return Auditor(
        DEFAULT_POLICY if configured.policy is None else load_policy(configured.policy),
        _sinks(configured, clock, counts),
        clock=clock,
        blocking=configured.blocking,
        tells_upstream=len(config.upstreams) > 1,
    )


def _sinks(configured: settings.Audit, clock: Clock, counts: ImmediateCounts) -> list[Sink]:
    sinks: list[Sink] = []
    if configured.log is not None:
        file = FileSink(configured.log.path, blocking=configured.blocking, fsync=configured.log.fsync, clock=clock)
        file.open()
        sinks.append(file)
    if configured.stdout:
        # Several workers share the memory that they count in, and the guard lies there.
        guard = counts.line_guard() if isinstance(counts, MachineCounts) else None
        sinks.append(StdoutSink(blocking=configured.blocking, guard=guard))
    if configured.webhook is not None:
        sinks.append(_webhook_sink(configured.webhook, blocking=configured.blocking, clock=clock))
    return sinks


def _webhook_sink(hook: settings.AuditWebhook, *, blocking: bool, clock: Clock) -> WebhookSink:
    # Imported only by those who use it: it is as large as the rest of the gateway.
    import httpx2

    context = client_context(hook.tls) if hook.url.startswith("https:") else True
    return WebhookSink(
        hook.url,
        client=httpx2.AsyncClient(verify=context, trust_env=False),
        token_file=hook.token_file,
        blocking=blocking,
        buffer_events=hook.buffer,
        batch_events=hook.batch,
        batch_seconds=hook.wait.total_seconds(),
        requests_per_second=hook.requests_per_second,
        burst=hook.burst,
        clock=clock,
    )
