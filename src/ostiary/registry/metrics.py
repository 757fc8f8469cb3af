"""The figures that the kubelet publishes about credential providers, under the same names, and two of our own.

Called by provider (runs), cache (hits and misses) and keyring (lookups, the configuration). `prometheus_client`
is optional and imported only here: without it nothing is counted and nothing fails.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

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

_log = logging.getLogger(__name__)
_default: RegistryMetrics | None = None
_default_lock = threading.Lock()


class Verdict(Enum):
    """How the lookup of an image ended. FAILED: nothing was found, and a provider that might know was not heard."""

    FOUND = "found"
    NONE = "none"
    FAILED = "failed"


class RegistryMetrics(Protocol):
    """What is counted. Called from any thread; never raises and never waits."""

    def ran(self, provider: str, *, seconds: float, failed: bool) -> None:
        """A provider's process ended, or could not be started. *failed* says nothing of its answer."""

    def cache(self, provider: str, *, hit: bool) -> None:
        """An answer was looked for in the provider's cache."""

    def looked_up(self, verdict: Verdict) -> None:
        """The lookup of an image is over."""

    def configured(self, config_hash: str) -> None:
        """A configuration is in force now."""


class NoMetrics:
    """Counts nothing."""

    def ran(self, provider: str, *, seconds: float, failed: bool) -> None: ...

    def cache(self, provider: str, *, hit: bool) -> None: ...

    def looked_up(self, verdict: Verdict) -> None: ...

    def configured(self, config_hash: str) -> None: ...


class PrometheusMetrics:
    """Counts in *registry*, which is prometheus_client's own unless given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY, Counter, Histogram

        self._errors = Counter(
            ERRORS_TOTAL,
            "How many runs of a credential provider failed or passed their time limit. "
            "An answer that cannot be used is not counted.",
            ["plugin_name"],
            registry=None,
        )
        self._duration = Histogram(
            DURATION,
            "How many seconds the runs of a credential provider took, whether they failed or not.",
            ["plugin_name"],
            buckets=DURATION_BUCKETS,
            registry=None,
        )
        self._cache = Counter(
            CACHE_TOTAL,
            "How many times an answer of a credential provider was looked for in its cache, by what came of it.",
            ["plugin_name", "result"],
            registry=None,
        )
        self._lookups = Counter(
            LOOKUPS_TOTAL,
            "How many images were looked up, by whether there was a credential to try.",
            ["verdict"],
            registry=None,
        )
        # Looking up a series costs more than counting in it, and every lookup of an image counts twice.
        self._series: dict[tuple[str, bool], Counter] = {}
        self._verdicts = {verdict: self._lookups.labels(verdict.value) for verdict in Verdict}
        self._config_hash = ""
        (REGISTRY if registry is None else registry).register(self)

    def ran(self, provider: str, *, seconds: float, failed: bool) -> None:
        if failed:
            self._errors.labels(provider).inc()
        self._duration.labels(provider).observe(seconds)

    def cache(self, provider: str, *, hit: bool) -> None:
        series = self._series.get((provider, hit))
        if series is None:
            series = self._series[provider, hit] = self._cache.labels(provider, "hit" if hit else "miss")
        series.inc()

    def looked_up(self, verdict: Verdict) -> None:
        self._verdicts[verdict].inc()

    def configured(self, config_hash: str) -> None:
        self._config_hash = config_hash

    def collect(self) -> Iterable[Metric]:
        """What a scrape reads; prometheus_client calls it."""
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
        for metric in (self._errors, self._duration, self._cache, self._lookups):
            yield from map(_without_creation_time, metric.collect())

    # Lets the registry notice that two of us would publish the same names.
    describe = collect


def default_metrics() -> RegistryMetrics:
    """The metrics of this process: Prometheus's if `prometheus_client` is installed, else none."""
    global _default
    with _default_lock:
        if _default is None:
            _default = _new_default()
        return _default


def _new_default() -> RegistryMetrics:
    try:
        return PrometheusMetrics()
    except ImportError:
        return NoMetrics()
    except ValueError as error:
        # Somebody else publishes these names in this process. A credential is worth more than a figure.
        _log.warning("the credential provider metrics are not published: %s", error)
        return NoMetrics()


def _without_creation_time(metric: Metric) -> Metric:
    # prometheus_client adds a "_created" series to each counter, which the kubelet does not have.
    metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    return metric
