"""Puts the sampler and the comparison of a configuration together. Called by the app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostiary.core.clock import Clock
from ostiary.gateway.audit.auditor import Auditor
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.upstream.upstreams import Upstream

if TYPE_CHECKING:
    # Imported where it is needed: most gateways have no upstream with a shadow.
    from ostiary.gateway.request.shadow.comparison import ShadowComparison
    from ostiary.gateway.request.shadow.sampling import ShadowQuestion, ShadowSampler


@dataclass(frozen=True, slots=True)
class ShadowParts:
    """`sampler` is for the engines; `comparisons`, by the name of their upstream, run in the background."""

    sampler: ShadowSampler
    comparisons: Mapping[str, ShadowComparison]


def open_shadow(upstreams: Sequence[Upstream], auditor: Auditor, metrics: Metrics, clock: Clock) -> ShadowParts | None:
    """None where no upstream has `shadow`: then the engines have nothing to call."""
    chosen = [upstream for upstream in upstreams if upstream.settings.shadow is not None]
    if not chosen:
        return None
    from ostiary.gateway.audit.shadow_recorder import ShadowRecorder
    from ostiary.gateway.request.shadow.comparison import ShadowComparison
    from ostiary.gateway.request.shadow.sampling import ShadowSampler

    recorder = ShadowRecorder(auditor, clock=clock, tells_upstream=len(upstreams) > 1)
    comparisons = {upstream.name: ShadowComparison(recorder, metrics, clock) for upstream in chosen}

    def enqueue(question: ShadowQuestion) -> bool:
        return comparisons[question.upstream.name].enqueue(question)

    return ShadowParts(ShadowSampler(chosen, enqueue, metrics, clock), comparisons)
