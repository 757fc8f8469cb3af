"""The kinds of metrics: counters, gauges and histograms, each a family of series that differ in their labels.

Declared by `observe.metrics`. Plain numbers without locks, counted from the event loop only. Not prometheus_client:
finding one of its labelled series costs more than all of this does for a request. A family holds a bounded number of
series whatever callers do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ostiary.gateway.observe.snapshots import Family, Series

NAMESPACE = "ostiary_gateway_"
SERIES_LIMIT = 1000
OTHER = "other"

Labels: TypeAlias = tuple[str, ...]


class Counter:
    """Numbers that only grow, by their labels."""

    type = "counter"
    merging = "sum"

    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        self.name, self.help, self.labels = NAMESPACE + name, help, labels
        self.values: dict[Labels, float] = {} if labels else {(): 0}
        self._reader: Callable[[], float] | None = None

    def read_from(self, reader: Callable[[], float]) -> None:
        """Call *reader* whenever the figures are wanted, instead of counting each change."""
        self._reader = reader

    def inc(self, *labels: str, by: float = 1) -> None:
        values = self.values
        if labels in values:
            values[labels] += by
        else:
            labels = bounded_labels(labels, values)
            values[labels] = values.get(labels, 0) + by

    def snapshot(self) -> Family:
        if self._reader is not None:
            self.values[()] = self._reader()
        return _family(self, [(list(labels), value) for labels, value in self.values.items()])


class Gauge(Counter):
    """Numbers that go up and down; *merging* says what several workers' numbers make: their sum, or their largest."""

    type = "gauge"

    def __init__(self, name: str, help: str, labels: Labels = (), *, merging: str = "sum") -> None:
        super().__init__(name, help, labels)
        self.merging = merging

    def set(self, value: float, *labels: str) -> None:
        self.values[labels if labels in self.values else bounded_labels(labels, self.values)] = value


class Histogram:
    """How often a number was how large. A series is a list: one count per bucket, one for the rest, and the sum."""

    type = "histogram"
    merging = "sum"

    def __init__(self, name: str, help: str, labels: Labels, buckets: Sequence[float]) -> None:
        self.name, self.help, self.labels, self.buckets = NAMESPACE + name, help, labels, tuple(buckets)
        self.values: dict[Labels, list[float]] = {} if labels else {(): self.empty_series()}

    def observe(self, value: float, *labels: str) -> None:
        series = self.values.get(labels)
        if series is None:
            series = self.values.setdefault(bounded_labels(labels, self.values), self.empty_series())
        series[bisect_left(self.buckets, value)] += 1
        series[-1] += value

    def snapshot(self) -> Family:
        family = _family(self, [(list(labels), list(series)) for labels, series in self.values.items()])
        return {**family, "buckets": list(self.buckets)}

    def empty_series(self) -> list[float]:
        return [0] * (len(self.buckets) + 1) + [0.0]


def bounded_labels(labels: Labels, values: Mapping[Labels, object]) -> Labels:
    """*labels*, or the series for all the rest when there are enough."""
    return labels if len(values) < SERIES_LIMIT else (OTHER,) * len(labels)


def _family(family: Counter | Histogram, series: list[Series]) -> Family:
    return {
        "type": family.type,
        "help": family.help,
        "labels": list(family.labels),
        "merging": family.merging,
        "series": series,
    }
