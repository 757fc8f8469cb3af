"""The kubelet's metrics of credential providers, under the same names, and two of our own."""

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
# The kubelet has no such metrics, so these have our prefix.
CACHE_TOTAL = "ostiary_credential_provider_cache_lookups_total"
LOOKUPS_TOTAL = "ostiary_image_lookups_total"

DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class LookupVerdict(Enum):
    """The outcome of an image lookup. FAILED: nothing was found, and a provider that might have a credential failed."""

    FOUND = "found"
    NONE = "none"
    FAILED = "failed"


class RegistryMetrics(Protocol):
    """Receives what is counted. Called from any thread; never raises or blocks."""

    def record_run(self, provider: str, *, seconds: float, failed: bool) -> None:
        """Record that a provider's process ended, or could not be started.

        *failed* does not cover an invalid response.
        """

    def cache(self, provider: str, *, hit: bool) -> None:
        """Record a lookup in the provider's cache."""

    def record_lookup(self, verdict: LookupVerdict) -> None:
        """Record the outcome of an image lookup."""

    def record_config(self, config_hash: str) -> None:
        """Record that a configuration became active."""


class NoRegistryMetrics:
    """Discards all metrics."""

    def record_run(self, provider: str, *, seconds: float, failed: bool) -> None: ...

    def cache(self, provider: str, *, hit: bool) -> None: ...

    def record_lookup(self, verdict: LookupVerdict) -> None: ...

    def record_config(self, config_hash: str) -> None: ...


class PrometheusRegistryMetrics(PublishedMetrics):
    """Counts in *registry*, by default prometheus_client's own."""

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
        # Getting a series costs more than incrementing it, and every image lookup increments two.
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
        # Only the latest hash: an old one would suggest that both configurations are active.
        if self._config_hash:
            info.add_metric([self._config_hash], 1)
        yield info


# The documented name.
PrometheusMetrics = PrometheusRegistryMetrics

# The metrics of this process: Prometheus if `prometheus_client` is installed, otherwise none.
default_metrics: DefaultMetrics[RegistryMetrics] = DefaultMetrics(
    "credential provider", published=PrometheusRegistryMetrics, none=NoRegistryMetrics, log=logging.getLogger(__name__)
)
