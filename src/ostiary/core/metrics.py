"""Publishes counters and histograms to Prometheus, for the doors that run inside other people's programs.

`client.metrics` and `registry.metrics` declare their figures with `PublishedMetrics` and choose the process's own with
`DefaultMetrics`. `prometheus_client` is optional and imported only when an instance is made: without it nothing is
counted and nothing fails. The gateway has its own figures, `gateway.observe.metrics`: finding a labelled series of
`prometheus_client` costs too much for every request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from ostiary.core.extras import needing

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.metrics_core import Metric

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
