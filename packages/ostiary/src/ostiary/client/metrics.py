"""Prometheus metrics about exec plugins, under the names that client-go uses.

`PublishedMetrics` and `DefaultMetrics` are shared with `registry.metrics`.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.extras import needing

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.metrics_core import Metric

# Metrics inside another application. `prometheus_client` is optional and imported only when an instance is created;
# without it nothing is counted and nothing fails. The gateway uses `ostiary_gateway.observability.metrics` instead:
# looking up a labeled series of `prometheus_client` is too slow for every request.

M = TypeVar("M")


class PublishedMetrics:
    """Base class for a collector in *registry*, by default prometheus_client's global registry.

    A subclass declares its counters and histograms and then calls `publish`. It returns metrics that are computed at
    scrape time from `read_at_scrape`.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        with needing("metrics", purpose="PrometheusMetrics"):
            from prometheus_client import REGISTRY

        self._registry = REGISTRY if registry is None else registry
        self._declared: list[Counter | Histogram] = []

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        from prometheus_client import Counter

        counter = Counter(name, help_text, labels, registry=None)
        self._declared.append(counter)
        return counter

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
    ) -> Histogram:
        from prometheus_client import Histogram

        histogram = Histogram(name, help_text, labels, buckets=buckets, registry=None)
        self._declared.append(histogram)
        return histogram

    def publish(self) -> None:
        """Register the collector. Raises `ValueError` if one of the names is already registered."""
        self._registry.register(self)

    def read_at_scrape(self) -> Iterable[Metric]:
        """Return the metrics that are computed at scrape time."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics. prometheus_client calls this for a scrape."""
        yield from self.read_at_scrape()
        for declared in self._declared:
            yield from map(_without_creation_time, declared.collect())

    def describe(self) -> Iterable[Metric]:
        """Let the registry detect two instances with the same metric names."""
        return self.collect()


def _without_creation_time(metric: Metric) -> Metric:
    # prometheus_client adds a "_created" series to each counter, which Kubernetes does not have.
    metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    return metric


class DefaultMetrics(Generic[M]):
    """The metrics of this process, created at first use: published ones if possible, else the null object.

    Prometheus's global registry is one per process and accepts each name once, so these are one per process too.
    """

    def __init__(self, what: str, *, published: Callable[[], M], none: Callable[[], M], log: logging.Logger) -> None:
        self._what = what
        self._log = log
        self._make_published = published
        self._make_none = none
        self._lock = threading.Lock()
        self._metrics: M | None = None

    def __call__(self) -> M:
        with self._lock:
            if self._metrics is None:
                self._metrics = self._make()
            return self._metrics

    def _make(self) -> M:
        try:
            return self._make_published()
        except ImportError:
            return self._make_none()
        except ValueError as error:
            # Other code already publishes these names in this process. Missing metrics must not prevent a credential.
            self._log.warning("the %s metrics are not published: %s", self._what, error)
            return self._make_none()


NO_ERROR = "no_error"
PLUGIN_EXECUTION_ERROR = "plugin_execution_error"
PLUGIN_NOT_FOUND_ERROR = "plugin_not_found_error"
CLIENT_INTERNAL_ERROR = "client_internal_error"

TTL_SECONDS = "rest_client_exec_plugin_ttl_seconds"
ROTATION_AGE = "rest_client_exec_plugin_certificate_rotation_age"
CALL_TOTAL = "rest_client_exec_plugin_call_total"
POLICY_CALL_TOTAL = "rest_client_exec_plugin_policy_call_total"

HOUR, DAY = 3600, 86400
# Rotation too often, normal, and too rare: minutes, then hours to a month, then months to four years.
ROTATION_AGE_BUCKETS = (
    600, 1800, HOUR, 4 * HOUR, DAY, 7 * DAY, 30 * DAY, 90 * DAY, 180 * DAY, 360 * DAY, 1440 * DAY,
)  # fmt: skip


class ExecMetrics(Protocol):
    """The metrics of exec plugins. Called from any thread; never raises and never blocks."""

    def record_call(self, *, code: int, call_status: str) -> None:
        """The plugin exited with *code* or could not be started. Counted before its output is decoded."""

    def policy(self, *, allowed: bool) -> None:
        """The policy allowed or denied a run. A denied run is not a call."""

    def record_rotation(self, *, age_seconds: float) -> None:
        """A client certificate was replaced *age_seconds* after it became valid."""

    def expires(self, holder: object, not_after: datetime | None) -> None:
        """*holder* now has a client certificate valid until *not_after*, or none.

        Only a weak reference to *holder* is stored; its certificate is dropped with it.
        """


class NoMetrics:
    """Count nothing."""

    def record_call(self, *, code: int, call_status: str) -> None: ...

    def policy(self, *, allowed: bool) -> None: ...

    def record_rotation(self, *, age_seconds: float) -> None: ...

    def expires(self, holder: object, not_after: datetime | None) -> None: ...


class PrometheusMetrics(PublishedMetrics):
    """Count in *registry*, by default prometheus_client's global registry."""

    def __init__(self, registry: CollectorRegistry | None = None, clock: Clock | None = None) -> None:
        super().__init__(registry)
        self._expiries = Expiries(clock or SYSTEM_CLOCK)
        self._rotation_age = self.histogram(
            ROTATION_AGE,
            "How many seconds a client certificate from an exec plugin had been valid when it was replaced.",
            buckets=ROTATION_AGE_BUCKETS,
        )
        self._calls = self.counter(
            CALL_TOTAL,
            "How many times an exec plugin was called, by exit code and by how the call ended. "
            "The code is 0 only for a call that succeeded.",
            ["code", "call_status"],
        )
        self._policy_calls = self.counter(
            POLICY_CALL_TOTAL,
            "How many times the plugin policy decided about an exec plugin, by decision.",
            ["status"],
        )
        self.publish()

    def record_call(self, *, code: int, call_status: str) -> None:
        self._calls.labels(code=str(code), call_status=call_status).inc()

    def policy(self, *, allowed: bool) -> None:
        self._policy_calls.labels(status="allowed" if allowed else "denied").inc()

    def record_rotation(self, *, age_seconds: float) -> None:
        self._rotation_age.observe(age_seconds)

    def expires(self, holder: object, not_after: datetime | None) -> None:
        self._expiries.set(holder, not_after)

    def read_at_scrape(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import GaugeMetricFamily

        yield GaugeMetricFamily(
            TTL_SECONDS,
            "How many seconds are left until the first client certificate from an exec plugin expires: "
            "negative when it has, +Inf when there is none.",
            value=self._expiries.seconds_left(),
        )


class Expiries:
    """The expiry times of the client certificates currently in use."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Reentrant: reading a weak reference may collect the object, whose finalizer may call this object.
        self._lock = threading.RLock()
        self._held: dict[int, tuple[weakref.ref[object], datetime]] = {}

    def set(self, holder: object, not_after: datetime | None) -> None:
        with self._lock:
            self._forget_the_gone()
            if not_after is None:
                self._held.pop(id(holder), None)
            else:
                self._held[id(holder)] = (weakref.ref(holder), not_after)

    def seconds_left(self) -> float:
        with self._lock:
            self._forget_the_gone()
            earliest = min((not_after for _, not_after in self._held.values()), default=None)
        return math.inf if earliest is None else (earliest - self._clock.now()).total_seconds()

    def _forget_the_gone(self) -> None:
        # Done here and not in a weak reference callback, which could run at any point, also within the loop above.
        self._held = {key: certificate for key, certificate in self._held.items() if certificate[0]() is not None}


# The metrics of this process: Prometheus's if `prometheus_client` is installed, else none.
default_metrics: DefaultMetrics[ExecMetrics] = DefaultMetrics(
    "exec plugin", published=PrometheusMetrics, none=NoMetrics, log=logging.getLogger(__name__)
)
