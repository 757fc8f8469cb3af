"""The figures that the kubelet publishes about credential providers, under the same names, and two of our own.

Called by `registry.kubelet.provider` (runs), `registry.cache` (hits and misses) and `registry.keyring` (lookups, the
configuration). `core.metrics` publishes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from ostiary.client.metrics import DefaultMetrics, PublishedMetrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter
    from prometheus_client.metrics_core import Metric

ERRORS_TOTAL = "kubelet_credential_provider_plugin_errors_total"
DURATION = "kubelet_credential_provider_plugin_duration"
CONFIG_INFO = "kubelet_credential_provider_config_info"
# The kubelet has nothing like these two, so they have our name.
CACHE_TOTAL = "ostiary_credential_provider_cache_lookups_total"
LOOKUPS_TOTAL = "ostiary_image_lookups_total"

DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class LookupVerdict(Enum):
    """How the lookup of an image ended. FAILED: nothing was found, and a provider that might know was not heard."""

    FOUND = "found"
    NONE = "none"
    FAILED = "failed"


class RegistryMetrics(Protocol):
    """What is counted. Called from any thread; never raises and never waits."""

    def record_run(self, provider: str, *, seconds: float, failed: bool) -> None:
        """A provider's process ended, or could not be started. *failed* says nothing of its answer."""

    def cache(self, provider: str, *, hit: bool) -> None:
        """An answer was looked for in the provider's cache."""

    def record_lookup(self, verdict: LookupVerdict) -> None:
        """The lookup of an image is over."""

    def record_config(self, config_hash: str) -> None:
        """A configuration is in force now."""


class NoRegistryMetrics:
    """Counts nothing."""

    def record_run(self, provider: str, *, seconds: float, failed: bool) -> None: ...

    def cache(self, provider: str, *, hit: bool) -> None: ...

    def record_lookup(self, verdict: LookupVerdict) -> None: ...

    def record_config(self, config_hash: str) -> None: ...


class PrometheusRegistryMetrics(PublishedMetrics):
    """Counts in *registry*, which is prometheus_client's own unless given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        self._errors = self.counter(
            ERRORS_TOTAL,
            "How many runs of a credential provider failed or passed their time limit. "
            "An answer that cannot be used is not counted.",
            ["plugin_name"],
        )
        self._duration = self.histogram(
            DURATION,
            "How many seconds the runs of a credential provider took, whether they failed or not.",
            ["plugin_name"],
            buckets=DURATION_BUCKETS,
        )
        self._cache = self.counter(
            CACHE_TOTAL,
            "How many times an answer of a credential provider was looked for in its cache, by what came of it.",
            ["plugin_name", "result"],
        )
        lookups = self.counter(
            LOOKUPS_TOTAL,
            "How many images were looked up, by whether there was a credential to try.",
            ["verdict"],
        )
        # Looking up a series costs more than counting in it, and every lookup of an image counts twice.
        self._series: dict[tuple[str, bool], Counter] = {}
        self._verdicts = {verdict: lookups.labels(verdict.value) for verdict in LookupVerdict}
        self._config_hash = ""
        self.publish()

    def record_run(self, provider: str, *, seconds: float, failed: bool) -> None:
        if failed:
            self._errors.labels(provider).inc()
        self._duration.labels(provider).observe(seconds)

    def cache(self, provider: str, *, hit: bool) -> None:
        series = self._series.get((provider, hit))
        if series is None:
            series = self._series[provider, hit] = self._cache.labels(provider, "hit" if hit else "miss")
        series.inc()

    def record_lookup(self, verdict: LookupVerdict) -> None:
        self._verdicts[verdict].inc()

    def record_config(self, config_hash: str) -> None:
        self._config_hash = config_hash

    def read_at_scrape(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import GaugeMetricFamily

        info = GaugeMetricFamily(
            CONFIG_INFO,
            "Always 1: the hash is that of the credential provider configuration in force.",
            labels=["hash"],
        )
        # Only the latest one: an old hash that stayed would say that both are in force.
        if self._config_hash:
            info.add_metric([self._config_hash], 1)
        yield info


# The documented name.
PrometheusMetrics = PrometheusRegistryMetrics

# The metrics of this process: Prometheus's if `prometheus_client` is installed, else none.
default_metrics: DefaultMetrics[RegistryMetrics] = DefaultMetrics(
    "credential provider", published=PrometheusRegistryMetrics, none=NoRegistryMetrics, log=logging.getLogger(__name__)
)
