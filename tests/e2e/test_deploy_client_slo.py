"""Service level objectives of the client: met over simulated days, and watched by rules that speak of its metrics."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from bench.slo import LIFETIMES, SHORT, simulate
from ostiary.client.metrics import PrometheusMetrics
from tests.support.deploy.object_schema import mistakes
from tests.support.deploy.render import KUSTOMIZE, ROOT, render_kustomize
from tests.support.tiers import missing

PROMETHEUS = ROOT / "deploy/prometheus"
PAGE = "docs/how-to/meet-the-slos.md"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "client-slo.yaml").read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
GIVEN_BY_PROMETHEUS = {"instance", "job", "namespace"}


def promtool(*arguments: str, folder: Path = PROMETHEUS) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        missing("promtool")
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


class TestObjectives:
    @pytest.mark.parametrize("lifetime", [LIFETIMES["1 hour"], LIFETIMES["8 hours"]])
    def test_rotations_come_within_one_percent_of_the_lifetime_and_no_request_is_without(self, lifetime: float) -> None:
        """E60, E59."""
        seen = simulate(lifetime, days=1, seed=7)
        assert len(seen.distances) >= 24 * 3600 / lifetime - 1
        assert max(map(abs, seen.distances)) <= 0.01
        assert (seen.without_credential, seen.failed_calls) == (0, 0)
        assert seen.least_seconds_left > 0

    def test_an_issuer_that_is_away_at_each_rotation_costs_less_than_the_objective_allows(self) -> None:
        seen = simulate(LIFETIMES["1 hour"], days=1, outages=True, seed=7)
        assert seen.failed_calls > 0
        assert seen.without_credential <= 0.0001 * seen.requests

    def test_a_short_credential_is_never_late(self) -> None:
        seen = simulate(SHORT, days=0.25)
        assert max(seen.distances) < 0
        assert seen.without_credential == 0


class TestRules:
    def test_promtool_accepts_and_tries_them(self) -> None:
        for words in (("check", "rules", "client-slo.yaml"), ("test", "rules", "client-slo_test.yaml")):
            done = promtool(*words)
            assert done.returncode == 0, done.stdout + done.stderr

    def test_the_trial_notices_an_objective_that_is_another(self, tmp_path: Path) -> None:
        shutil.copy(PROMETHEUS / "client-slo_test.yaml", tmp_path)
        (tmp_path / "client-slo.yaml").write_text(
            (PROMETHEUS / "client-slo.yaml").read_text().replace("> 0.0001", "> 1")
        )
        assert promtool("test", "rules", "client-slo_test.yaml", folder=tmp_path).returncode != 0

    def test_every_alert_is_tried_when_it_fires_and_when_it_does_not(self) -> None:
        tests = yaml.safe_load((PROMETHEUS / "client-slo_test.yaml").read_text())["tests"]
        cases = [case for test in tests for case in test["alert_rule_test"]]
        names = {rule["alert"] for rule in ALERTS}
        assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
        assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names

    @pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
    def test_an_alert_says_how_urgent_it_is_and_where_to_read_on(self, rule: dict[str, Any]) -> None:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["runbook"] == f"{PAGE}#{rule['alert'].lower()}"
        assert f"\n### {rule['alert']}\n" in (ROOT / PAGE).read_text()

    def test_every_metric_and_label_is_one_that_the_client_has(self) -> None:
        registry = CollectorRegistry()
        metrics = PrometheusMetrics(registry)
        metrics.record_call(code=0, call_status="no_error")
        samples = {sample.name: set(sample.labels) for family in registry.collect() for sample in family.samples}
        recorded = {rule["record"] for rule in RULES if "record" in rule}
        for rule in RULES:
            names = set(re.findall(r"\brest_client_\w+", rule["expr"]))
            assert names <= set(samples), rule
            assert set(re.findall(r"\bostiary:[\w:]+", rule["expr"])) <= recorded
            labels = set(re.findall(r"(\w+)!?=~?\"", rule["expr"])) | set(
                re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"])))
            )
            assert labels <= GIVEN_BY_PROMETHEUS | {label for name in names for label in samples[name]}

    def test_the_operator_gets_the_same_rules_and_knows_every_field(self, tmp_path: Path) -> None:
        (rule,) = render_kustomize(KUSTOMIZE / "client-monitoring", tmp_path)
        assert rule["spec"] == yaml.safe_load((PROMETHEUS / "client-slo.yaml").read_text())
        assert mistakes(rule) == []
