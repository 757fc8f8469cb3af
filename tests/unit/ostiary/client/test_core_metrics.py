"""Figures that are declared once and published under exactly the declared names."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from ostiary.client.metrics import DefaultMetrics, PublishedMetrics
from ostiary.errors import LibraryMissing

log = logging.getLogger("test")


class Figures(PublishedMetrics):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.visits = self.counter("visits_total", "How many came.", ["door"])
        self.stays = self.histogram("stay_seconds", "How long they stayed.", buckets=(1, 2))
        self.inside = 0
        self.publish()

    def read_at_scrape(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("inside", "How many are in.", value=self.inside)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_the_declared_figures_are_published_and_no_creation_times(registry: CollectorRegistry) -> None:
    figures = Figures(registry)
    figures.visits.labels("front").inc()
    figures.stays.observe(1.5)
    names = {sample.name for family in registry.collect() for sample in family.samples}
    assert names == {"visits_total", "stay_seconds_bucket", "stay_seconds_count", "stay_seconds_sum", "inside"}
    assert registry.get_sample_value("visits_total", {"door": "front"}) == 1


def test_a_figure_that_is_computed_is_computed_at_each_scrape(registry: CollectorRegistry) -> None:
    figures = Figures(registry)
    figures.inside = 3
    assert registry.get_sample_value("inside") == 3
    figures.inside = 2
    assert registry.get_sample_value("inside") == 2


def test_the_same_names_cannot_be_published_twice(registry: CollectorRegistry) -> None:
    Figures(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Figures(registry)


def test_the_default_is_made_once() -> None:
    default = DefaultMetrics("door", published=object, none=object, log=log)
    assert default() is default()


@pytest.mark.parametrize(("error", "warnings"), [(LibraryMissing("it is missing"), 0), (ValueError("Duplicated"), 1)])
def test_what_cannot_be_published_is_not_counted_and_does_not_fail(
    error: Exception, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    def cannot_publish() -> str:
        raise error

    default = DefaultMetrics("door", published=cannot_publish, none=lambda: "none", log=log)
    assert default() == "none"
    assert [record.getMessage() for record in caplog.records] == ["the door metrics are not published: Duplicated"][
        :warnings
    ]
