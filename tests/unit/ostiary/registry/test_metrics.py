"""The credential providers' figures: the kubelet's names, labels and buckets, and two of our own."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ostiary.registry.keyring import Keyring
from ostiary.registry.metrics import (
    CACHE_TOTAL,
    CONFIG_INFO,
    DURATION,
    ERRORS_TOTAL,
    LOOKUPS_TOTAL,
    LookupVerdict,
    NoRegistryMetrics,
    PrometheusMetrics,
    default_metrics,
)
from tests.support.providers import ProviderScript, providers_config


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def published(registry: CollectorRegistry) -> PrometheusMetrics:
    return PrometheusMetrics(registry)


def lines(registry: CollectorRegistry, name: str) -> list[str]:
    text = generate_latest(registry).decode().splitlines()
    return [line for line in text if line.startswith(name) or line.startswith(f"# TYPE {name} ")]


@pytest.mark.parametrize(("seconds", "below"), [(0.3, 0.5), (0.001, 0.005), (2.0, 2.5), (11.0, float("inf"))])
def test_durations_are_counted_in_the_kubelets_buckets(
    published: PrometheusMetrics, registry: CollectorRegistry, seconds: float, below: float
) -> None:
    published.record_run("test-plugin", seconds=seconds, failed=False)
    bounds = ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "+Inf"]
    expected = [f"# TYPE {DURATION} histogram"]
    for bound in bounds:
        count = 1.0 if float(bound) >= below else 0.0
        expected.append(f'{DURATION}_bucket{{le="{bound}",plugin_name="test-plugin"}} {count}')
    expected.append(f'{DURATION}_count{{plugin_name="test-plugin"}} 1.0')
    expected.append(f'{DURATION}_sum{{plugin_name="test-plugin"}} {seconds}')
    assert lines(registry, DURATION) == expected


def test_failed_runs_are_counted_by_provider(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    for name in ("a", "b", "a"):
        published.record_run(name, seconds=1, failed=True)
    published.record_run("c", seconds=1, failed=False)
    assert lines(registry, ERRORS_TOTAL) == [
        f"# TYPE {ERRORS_TOTAL} counter",
        f'{ERRORS_TOTAL}{{plugin_name="a"}} 2.0',
        f'{ERRORS_TOTAL}{{plugin_name="b"}} 1.0',
    ]


def test_only_the_latest_configuration_is_shown(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    for number in range(3):
        published.record_config(f"sha256:{number}")
    assert lines(registry, CONFIG_INFO) == [f"# TYPE {CONFIG_INFO} gauge", f'{CONFIG_INFO}{{hash="sha256:2"}} 1.0']


def test_every_figure_is_explained(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    published.record_run("a", seconds=1, failed=True)
    assert all(family.documentation for family in registry.collect())


def test_a_name_that_is_taken_is_noticed(published: PrometheusMetrics, registry: CollectorRegistry) -> None:
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusMetrics(registry)


def test_without_a_registry_nothing_is_counted_and_nothing_fails() -> None:
    none = NoRegistryMetrics()
    none.record_run("a", seconds=1, failed=True)
    none.cache("a", hit=True)
    none.record_lookup(LookupVerdict.FOUND)
    none.record_config("x")


def test_there_is_one_default_for_the_process() -> None:
    assert default_metrics() is default_metrics()


def test_a_lookup_counts_runs_failures_hits_and_verdicts(
    published: PrometheusMetrics, registry: CollectorRegistry, tmp_path: Path
) -> None:
    good = ProviderScript(tmp_path, "good").answer({"a.io": ("u", "p")}, duration="1h")
    bad = ProviderScript(tmp_path, "bad").exit(1)
    wrong = ProviderScript(tmp_path, "wrong").print_exactly(b"not an answer")
    config = providers_config(good.config("a.io"), bad.config("b.io"), wrong.config("c.io"), config_hash="sha256:x")
    keyring = Keyring(config, bin_dir=tmp_path, metrics=published)
    for image in ("a.io/x", "a.io/y", "b.io/x", "c.io/x", "d.io/x"):
        keyring.lookup(image)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value(CONFIG_INFO, hash="sha256:x") == 1
    assert value(f"{DURATION}_count", plugin_name="good") == 1
    assert value(f"{DURATION}_count", plugin_name="bad") == 1
    assert value(ERRORS_TOTAL, plugin_name="bad") == 1
    assert value(ERRORS_TOTAL, plugin_name="wrong") is None, "an answer that cannot be used is not a failed run"
    assert value(CACHE_TOTAL, plugin_name="good", result="hit") == 1
    assert value(CACHE_TOTAL, plugin_name="good", result="miss") == 1
    assert [value(LOOKUPS_TOTAL, verdict=verdict.value) for verdict in LookupVerdict] == [2, 1, 2]
