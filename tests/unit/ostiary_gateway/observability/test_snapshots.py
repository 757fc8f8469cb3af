"""The figures of several workers become one: sums are summed, shared facts are not."""

from __future__ import annotations

import json

from ostiary_gateway.observability.metrics import Metrics, render
from ostiary_gateway.observability.snapshots import merge
from tests.support.metrics import value


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
