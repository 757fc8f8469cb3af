"""Counters and histograms: plain numbers, and a bounded number of series."""

from __future__ import annotations

import pytest

from ostiary_gateway.observability.metrics import SERIES_LIMIT, Metrics
from tests.support.metrics import value


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1.2.3")


def test_a_boundary_belongs_to_its_bucket(metrics: Metrics) -> None:
    metrics.revocation_lag.observe(0.1)
    assert value(metrics.render(), "revocation_lag_seconds_bucket", le="0.1") == 1
    assert value(metrics.render(), "revocation_lag_seconds_bucket", le="0.05") == 0


def test_a_family_holds_a_bounded_number_of_series(metrics: Metrics) -> None:
    """T2."""
    for number in range(SERIES_LIMIT * 2):
        metrics.authentications.inc(str(number))
        metrics.requests.count("get", 200, str(number), 0)
    assert len(metrics.authentications.values) == SERIES_LIMIT + 1
    assert metrics.authentications.values["other",] == SERIES_LIMIT
    assert metrics.render().count(b"requests_total{") == SERIES_LIMIT + 1
