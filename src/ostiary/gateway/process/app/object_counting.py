"""What the admission providers that count objects tell operators: figures for the metrics, and what everybody uses.

Called by the app.
"""

from __future__ import annotations

from collections.abc import Collection

from ostiary.gateway.observe.metrics import Metrics
from ostiary.interfaces.admission import CountsObjects, SubjectUsage, UpstreamApi


def show_figures(providers: Collection[CountsObjects], metrics: Metrics) -> None:
    corrections = 0
    for provider in providers:
        figures = provider.figures()
        corrections += figures.corrections
        for limit, fullness in figures.fullest.items():
            metrics.quota_fullest.set(fullness, limit)
    metrics.quota_corrections.read_from(lambda: corrections)


async def quota_usage(providers: Collection[CountsObjects], api: UpstreamApi) -> list[SubjectUsage]:
    """What stands now, by limit and subject; raises `ProviderError`."""
    return [row for provider in providers for row in await provider.usage(api)]
