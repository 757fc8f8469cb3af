"""The figures of the gateway: counted in plain numbers, merged over workers, read by Prometheus."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ostiary.gateway.observe.exposition import render
from ostiary.gateway.observe.families import SERIES_LIMIT, Counter
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.observe.snapshots import merge


def samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus would read."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def value(page: bytes, name: str, **labels: str) -> float:
    return samples(page)[f"ostiary_gateway_{name}", tuple(sorted(labels.items()))]


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


def test_a_boundary_belongs_to_its_bucket(metrics: Metrics) -> None:
    metrics.revocation_lag.observe(0.1)
    assert value(metrics.render(), "revocation_lag_seconds_bucket", le="0.1") == 1
    assert value(metrics.render(), "revocation_lag_seconds_bucket", le="0.05") == 0


def test_invented_methods_and_codes_share_a_series(metrics: Metrics) -> None:
    """T2: a caller cannot make the page grow."""
    for number in range(5000):
        metrics.requests.count(f"verb{number}", number * 1000, "cluster", 0.1)
    page = metrics.render()
    assert value(page, "requests_total", verb="other", code="other", upstream="cluster") == 5000
    assert page.count(b"requests_total{") == 1


def test_a_family_holds_a_bounded_number_of_series(metrics: Metrics) -> None:
    """T2."""
    for number in range(SERIES_LIMIT * 2):
        metrics.authentications.inc(str(number))
        metrics.requests.count("get", 200, str(number), 0)
    assert len(metrics.authentications.values) == SERIES_LIMIT + 1
    assert metrics.authentications.values["other",] == SERIES_LIMIT
    assert metrics.render().count(b"requests_total{") == SERIES_LIMIT + 1


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


def test_workers_are_summed_and_shared_facts_are_not() -> None:
    workers = [Metrics(version="1"), Metrics(version="1"), Metrics(version="2")]
    for number, worker in enumerate(workers, 1):
        worker.requests.count("get", 200, "cluster", number)
        worker.authentications.inc("success", by=number)
        worker.tokens_live.set(100)
        worker.open_streams.set(number)
        worker.revocation_lag.observe(0.01)
    snapshots = [json.loads(json.dumps(worker.snapshot())) for worker in workers]
    before = json.dumps(snapshots)
    page = render(merge(snapshots))
    assert json.dumps(snapshots) == before, "merging changes nothing that it is given"
    assert value(page, "requests_total", verb="get", code="200", upstream="cluster") == 3
    assert value(page, "request_duration_seconds_sum", verb="get", upstream="cluster") == 6
    assert value(page, "authentications_total", result="success") == 6
    assert value(page, "tokens_live") == 100
    assert value(page, "open_streams") == 6
    assert value(page, "revocation_lag_seconds_count") == 3
    assert value(page, "build_info", version="2") == 1
    assert merge([]) == {}


def test_a_worker_of_another_version_spoils_nothing() -> None:
    ours, theirs = Metrics().snapshot(), Metrics().snapshot()
    theirs["ostiary_gateway_revocation_lag_seconds"]["buckets"] = [1]
    theirs["ostiary_gateway_new_total"] = {**theirs["ostiary_gateway_audit_events_total"], "series": [([], 4)]}
    page = render(merge([ours, theirs]))
    assert value(page, "new_total") == 4
    assert value(page, "revocation_lag_seconds_bucket", le="60") == 0


@given(st.text(), st.integers(min_value=0, max_value=2**53))
@settings(max_examples=100)
def test_any_label_survives_the_page(label: str, count: int) -> None:
    if label.encode("utf-8", "ignore").decode() != label:
        return
    family = Counter("x_total", "h", ("result",))
    family.inc(label, by=count)
    metrics = Metrics()
    metrics.authentications = family
    # The parser reads lines as Python does, and Prometheus only at a line feed.
    if label.splitlines() in ([label], []):
        assert value(metrics.render(), "x_total", result=label) == count
