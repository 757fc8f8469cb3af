"""Counts the runs of each provider, for ``ostiary registry status``."""

from __future__ import annotations

import threading
from collections import Counter

from ostiary.registry.metrics import NoRegistryMetrics


class ProviderRunCounts(NoRegistryMetrics):
    """What the keyring counts in; any thread may."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: Counter[str] = Counter()

    def record_run(self, provider: str, *, seconds: float, failed: bool) -> None:
        with self._lock:
            self._runs[provider] += 1

    def runs(self, provider: str) -> int:
        return self._runs[provider]
