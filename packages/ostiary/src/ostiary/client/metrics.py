"""The figures that client-go publishes about exec plugins, under the same names.

Called by `client.exec.plugin` (policy, calls) and by the authenticator (certificates). `core.metrics` publishes them.
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

# Publishes counters and histograms to Prometheus, for the doors that run inside other people's programs.
#
# `client.metrics` and `registry.metrics` declare their figures with `PublishedMetrics` and choose the process's own
# with `DefaultMetrics`. `prometheus_client` is optional and imported only when an instance is made: without it nothing
# is counted and nothing fails. The gateway has its own figures, `gateway.observe.metrics`: finding a labelled series of
# `prometheus_client` costs too much for every request.

M = TypeVar("M")


class PublishedMetrics:
    """The figures of one door in *registry*, which is prometheus_client's own unless given.

    A subclass declares its counters and histograms, and then calls `publish`. Figures that are computed when they are
    read it returns from `read_at_scrape`.
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
        """Raises `ValueError` if somebody publishes one of the names already."""
        self._registry.register(self)

    def read_at_scrape(self) -> Iterable[Metric]:
        """The figures that are computed when they are read."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """What a scrape reads; prometheus_client calls it."""
        yield from self.read_at_scrape()
        for declared in self._declared:
            yield from map(_without_creation_time, declared.collect())

    def describe(self) -> Iterable[Metric]:
        """Lets the registry notice that two instances would publish the same names."""
        return self.collect()


def _without_creation_time(metric: Metric) -> Metric:
    # prometheus_client adds a "_created" series to each counter, which Kubernetes does not have.
    metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    return metric


class DefaultMetrics(Generic[M]):
    """The metrics of this process, made when they are first asked for: published ones if that is possible, else none.

    Prometheus's own registry is one per process and takes a name once, so these must be one per process too.
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
            # Somebody else publishes these names in this process. A credential is worth more than a figure.
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
# Too often, then healthy, then too rarely: minutes, then hours to a month, then months to four years.
ROTATION_AGE_BUCKETS = (
    600, 1800, HOUR, 4 * HOUR, DAY, 7 * DAY, 30 * DAY, 90 * DAY, 180 * DAY, 360 * DAY, 1440 * DAY,
)  # fmt: skip


class ExecMetrics(Protocol):
    """What is counted. Called from any thread; never raises and never waits."""

    def record_call(self, *, code: int, call_status: str) -> None:
        """The plugin ended with *code*, or could not be started. Counted before its answer is read."""

    def policy(self, *, allowed: bool) -> None:
        """The policy let a run pass, or refused it. A refused run is not a call."""

    def record_rotation(self, *, age_seconds: float) -> None:
        """A client certificate was replaced *age_seconds* after it became valid."""

    def expires(self, holder: object, not_after: datetime | None) -> None:
        """*holder* now has a client certificate valid until *not_after*, or none at all.

        The holder is only referenced weakly: when it is gone, so is its certificate.
        """


class NoMetrics:
    """Counts nothing."""

    def record_call(self, *, code: int, call_status: str) -> None: ...

    def policy(self, *, allowed: bool) -> None: ...

    def record_rotation(self, *, age_seconds: float) -> None: ...

    def expires(self, holder: object, not_after: datetime | None) -> None: ...


class PrometheusMetrics(PublishedMetrics):
    """Counts in *registry*, which is prometheus_client's own unless given."""

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
    """When the client certificates that are held now expire."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Reentrant: looking at a weak reference may drop the holder, and its end may be told to us.
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
        # Here and not in a callback of the weak reference: that would run in the middle of anything,
        # also of the loop above.
        self._held = {key: certificate for key, certificate in self._held.items() if certificate[0]() is not None}


# The metrics of this process: Prometheus's if `prometheus_client` is installed, else none.
default_metrics: DefaultMetrics[ExecMetrics] = DefaultMetrics(
    "exec plugin", published=PrometheusMetrics, none=NoMetrics, log=logging.getLogger(__name__)
)
