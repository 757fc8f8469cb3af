"""The exec plugin's figures: client-go's names, labels and buckets, and nothing else."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ostiary.client import metrics
from ostiary.client.exec.policy import AllowAll, Allowlist, DenyAll, Plan, PluginPolicy
from ostiary.client.metrics import (
    CALL_TOTAL,
    CLIENT_INTERNAL_ERROR,
    NO_ERROR,
    PLUGIN_EXECUTION_ERROR,
    PLUGIN_NOT_FOUND_ERROR,
    POLICY_CALL_TOTAL,
    ROTATION_AGE,
    TTL_SECONDS,
    ExecMetrics,
    NoMetrics,
    PrometheusMetrics,
    default_metrics,
)
from ostiary.errors import PluginRefused
from ostiary_gateway.testing import FakeClock

START = datetime(2026, 1, 1, tzinfo=UTC)


class Holder:
    """Stands for an authenticator."""


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def published(registry: CollectorRegistry, clock: FakeClock) -> PrometheusMetrics:
    return PrometheusMetrics(registry, clock)


def use_all(published: ExecMetrics) -> None:
    published.record_call(code=0, call_status=NO_ERROR)
    published.policy(allowed=True)
    published.record_rotation(age_seconds=1)


def test_the_published_names_are_those_of_client_go_and_no_others(
    published: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    """E55, E56, E57."""
    use_all(published)
    text = generate_latest(registry).decode()
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names == {
        "rest_client_exec_plugin_ttl_seconds",
        "rest_client_exec_plugin_certificate_rotation_age_bucket",
        "rest_client_exec_plugin_certificate_rotation_age_count",
        "rest_client_exec_plugin_certificate_rotation_age_sum",
        "rest_client_exec_plugin_call_total",
        "rest_client_exec_plugin_policy_call_total",
    }
    types = {tuple(line.split(" ")[2:]) for line in text.splitlines() if line.startswith("# TYPE")}
    assert types == {
        ("rest_client_exec_plugin_ttl_seconds", "gauge"),
        ("rest_client_exec_plugin_certificate_rotation_age", "histogram"),
        ("rest_client_exec_plugin_call_total", "counter"),
        ("rest_client_exec_plugin_policy_call_total", "counter"),
    }


def test_every_figure_is_explained(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    use_all(published)
    assert all(family.documentation for family in text_string_to_metric_families(generate_latest(registry).decode()))


def test_the_labels_are_those_of_client_go(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    """E57."""
    use_all(published)
    labels = {sample.name: set(sample.labels) for family in registry.collect() for sample in family.samples}
    assert labels[CALL_TOTAL] == {"code", "call_status"}
    assert labels[POLICY_CALL_TOTAL] == {"status"}


def test_the_same_names_cannot_be_published_twice(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusMetrics(registry)


# --- calls ---


def test_calls_are_counted_by_exit_code_and_status(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    """E57."""
    for code in (0, 1, 2, 0) * 2:
        published.record_call(code=code, call_status=PLUGIN_EXECUTION_ERROR if code else NO_ERROR)
    for _ in ("bare", "./relative", "/absolute"):
        published.record_call(code=1, call_status=PLUGIN_NOT_FOUND_ERROR)
    published.record_call(code=1, call_status=CLIENT_INTERNAL_ERROR)
    published.record_call(code=-1, call_status=PLUGIN_EXECUTION_ERROR)

    def count(code: str, call_status: str) -> float | None:
        return registry.get_sample_value(CALL_TOTAL, {"code": code, "call_status": call_status})

    assert count("0", "no_error") == 4
    assert count("1", "plugin_execution_error") == 2
    assert count("2", "plugin_execution_error") == 2
    assert count("-1", "plugin_execution_error") == 1
    assert count("1", "plugin_not_found_error") == 3
    assert count("1", "client_internal_error") == 1
    assert count("1", "no_error") is None


def test_calls_from_many_threads_are_all_counted(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    together = threading.Barrier(8)

    def call() -> None:
        together.wait()
        for _ in range(100):
            published.record_call(code=0, call_status=NO_ERROR)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.get_sample_value(CALL_TOTAL, {"code": "0", "call_status": NO_ERROR}) == 800


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (AllowAll(), "allowed"),
        (DenyAll(), "denied"),
        (Allowlist(["bin/plugin"]), "allowed"),
        (Allowlist(["bin/other"]), "denied"),
    ],
)
def test_what_the_policy_answers_is_counted(
    published: PrometheusMetrics, registry: CollectorRegistry, policy: PluginPolicy, status: str
) -> None:
    try:
        policy.check(Plan("./bin/plugin", "./bin/plugin"))
        allowed = True
    except PluginRefused:
        allowed = False
    published.policy(allowed=allowed)
    assert registry.get_sample_value(POLICY_CALL_TOTAL, {"status": status}) == 1
    counted = [sample for family in registry.collect() for sample in family.samples if sample.name == POLICY_CALL_TOTAL]
    assert len(counted) == 1


# --- certificates ---


def ttl(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value(TTL_SECONDS)


def test_the_ttl_is_that_of_the_certificate_that_expires_first(
    published: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    """E55."""
    first, second = Holder(), Holder()
    assert ttl(registry) == math.inf
    published.expires(first, None)
    assert ttl(registry) == math.inf
    published.expires(first, START + timedelta(hours=2))
    assert ttl(registry) == 7200
    published.expires(second, START + timedelta(hours=1))
    assert ttl(registry) == 3600
    published.expires(second, START + timedelta(hours=3))
    assert ttl(registry) == 7200
    published.expires(first, None)
    assert ttl(registry) == 10800


def test_the_ttl_is_computed_when_it_is_read_and_turns_negative(
    published: PrometheusMetrics, registry: CollectorRegistry, clock: FakeClock
) -> None:
    """E55."""
    holder = Holder()
    published.expires(holder, START + timedelta(minutes=1))
    clock.advance(59)
    assert ttl(registry) == 1
    clock.advance(11)
    assert ttl(registry) == -10


def test_a_holder_that_is_gone_does_not_count(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    stays, goes = Holder(), Holder()
    published.expires(stays, START + timedelta(hours=2))
    published.expires(goes, START + timedelta(hours=1))
    del goes
    gc.collect()
    assert ttl(registry) == 7200


def test_many_short_lived_holders_leave_nothing_behind(clock: FakeClock) -> None:
    expiries = metrics.Expiries(clock)
    for _ in range(1000):
        expiries.set(Holder(), START)
    assert expiries.seconds_left() == math.inf
    assert not expiries._held


def test_equal_holders_are_still_two(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    class Equal(Holder):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    first, second = Equal(), Equal()
    published.expires(first, START + timedelta(hours=1))
    published.expires(second, START + timedelta(hours=2))
    assert ttl(registry) == 3600


def test_the_age_of_a_replaced_certificate_falls_into_the_buckets_of_client_go(
    published: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    """E56."""
    published.record_rotation(age_seconds=3600)
    published.record_rotation(age_seconds=200_000_000)

    samples = [sample for family in registry.collect() for sample in family.samples]
    buckets = {
        float(sample.labels["le"]): sample.value for sample in samples if sample.name == f"{ROTATION_AGE}_bucket"
    }
    limits = [600, 1800, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000, math.inf]
    assert list(buckets) == limits
    assert list(buckets.values()) == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]
    assert registry.get_sample_value(f"{ROTATION_AGE}_sum") == 200_003_600


# --- which metrics a process has ---


def in_a_new_process(code: str, **environ: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_default_is_made_once_and_published_where_prometheus_looks() -> None:
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor
from ostiary.client.metrics import default_metrics, TTL_SECONDS
together = threading.Barrier(8)
def get(_):
    together.wait()
    return default_metrics()
with ThreadPoolExecutor(8) as pool:
    made = set(pool.map(get, range(8)))
from prometheus_client import REGISTRY
print(len(made), type(made.pop()).__name__, REGISTRY.get_sample_value(TTL_SECONDS))
"""
    assert in_a_new_process(code) == "1 PrometheusMetrics inf"


def test_without_prometheus_client_nothing_is_counted_and_nothing_fails(tmp_path: Path) -> None:
    """E58."""
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not installed')\n")
    code = """
from ostiary.client.metrics import default_metrics
made = default_metrics()
made.record_call(code=0, call_status="no_error"); made.policy(allowed=True)
made.record_rotation(age_seconds=1); made.expires(made, None)
print(type(made).__name__)
"""
    assert in_a_new_process(code, PYTHONPATH=str(tmp_path)) == "NoMetrics"


def test_names_that_somebody_else_publishes_do_not_stop_the_program() -> None:
    code = """
from prometheus_client import Gauge
from ostiary.client.metrics import default_metrics, TTL_SECONDS
Gauge(TTL_SECONDS, "somebody else's")
print(type(default_metrics()).__name__)
"""
    assert in_a_new_process(code) == "NoMetrics"


def test_prometheus_client_is_imported_only_when_metrics_are_used() -> None:
    code = "import sys, ostiary.client.metrics; print('prometheus_client' in sys.modules)"
    assert in_a_new_process(code) == "False"


def test_counting_nothing_is_silent() -> None:
    """E58."""
    nothing: ExecMetrics = NoMetrics()
    use_all(nothing)
    nothing.expires(Holder(), START)


def test_the_default_stays_the_same() -> None:
    assert default_metrics() is default_metrics()
