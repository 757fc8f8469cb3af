"""The figures of the gateway: counted in plain numbers, merged over workers, read by Prometheus."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ostiary_gateway.observability.metrics import Metrics
from tests.support.metrics import value


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1.2.3")


def test_requests_are_counted_by_verb_code_and_upstream(metrics: Metrics) -> None:
    for _ in range(3):
        metrics.requests.count("get", 200, "cluster", 0.004)
    metrics.requests.count("get", 404, "cluster", 7)
    page = metrics.render()
    assert value(page, "requests_total", verb="get", code="200", upstream="cluster") == 3
    assert value(page, "requests_total", verb="get", code="404", upstream="cluster") == 1
    took = {"verb": "get", "upstream": "cluster"}
    assert value(page, "request_duration_seconds_count", **took) == 4
    assert value(page, "request_duration_seconds_sum", **took) == pytest.approx(7.012)
    assert value(page, "request_duration_seconds_bucket", **took, le="0.0025") == 0
    assert value(page, "request_duration_seconds_bucket", **took, le="0.005") == 3
    assert value(page, "request_duration_seconds_bucket", **took, le="5") == 3
    assert value(page, "request_duration_seconds_bucket", **took, le="+Inf") == 4


def test_invented_methods_and_codes_share_a_series(metrics: Metrics) -> None:
    """T2: a caller cannot make the page grow."""
    for number in range(5000):
        metrics.requests.count(f"verb{number}", number * 1000, "cluster", 0.1)
    page = metrics.render()
    assert value(page, "requests_total", verb="other", code="other", upstream="cluster") == 5000
    assert page.count(b"requests_total{") == 1


def test_all_that_an_operator_must_see_is_on_the_page(metrics: Metrics) -> None:
    """S15, S64."""
    metrics.authentications.inc("expired")
    metrics.decisions.inc("allow")
    metrics.default_configuration.set(1)
    metrics.audit_dropped.read_from(lambda: 3)
    metrics.open_streams.read_from(lambda: 2)
    page = metrics.render()
    assert value(page, "authentications_total", result="expired") == 1
    assert value(page, "decisions_total", verdict="allow") == 1
    assert value(page, "default_configuration") == 1
    assert value(page, "audit_dropped_total") == 3
    assert value(page, "open_streams") == 2
    assert value(page, "build_info", version="1.2.3") == 1
    assert value(page, "revocation_lag_seconds_count") == 0
    for name in ("tokens_live", "audit_events_total", "queued_requests", "in_flight_requests"):
        assert value(page, name) == 0


def test_every_family_has_its_help_and_type(metrics: Metrics) -> None:
    for family in text_string_to_metric_families(metrics.render().decode()):
        assert family.name.startswith("ostiary_gateway_")
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")


def test_no_label_is_a_users_name(metrics: Metrics) -> None:
    """T2, L6."""
    names = {label for family in metrics.snapshot().values() for label in family["labels"]}
    assert not names & {"user", "username", "group", "namespace", "path", "token", "address"}
