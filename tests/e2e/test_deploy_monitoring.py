"""Alert rules and dashboard: promtool accepts and tries them, and they speak of metrics and labels that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary_gateway.observability.metrics import NAMESPACE, Metrics
from tests.support.deploy.object_schema import mistakes
from tests.support.deploy.render import KUSTOMIZE, ROOT, render_kustomize
from tests.support.tiers import missing

PROMETHEUS = ROOT / "deploy/prometheus"
DASHBOARD = json.loads((ROOT / "deploy/grafana/ostiary-gateway.json").read_text())
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
TESTS: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())["tests"]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Given by Prometheus when it scrapes, and by a histogram.
LABELS_OF_EVERY_SERIES = {"instance", "job", "namespace", "pod", "le"}


def promtool(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        missing("promtool")
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


class TestAlerts:
    def test_promtool_accepts_the_rules(self) -> None:
        done = promtool("check", "rules", "alerts.yaml", folder=PROMETHEUS)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_every_alert_fires_when_it_should_and_none_while_all_is_well(self) -> None:
        done = promtool("test", "rules", "alerts_test.yaml", folder=PROMETHEUS)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_trial_notices_an_alert_that_never_fires(self, tmp_path: Path) -> None:
        shutil.copy(PROMETHEUS / "alerts_test.yaml", tmp_path)
        rules = (PROMETHEUS / "alerts.yaml").read_text()
        (tmp_path / "alerts.yaml").write_text(rules.replace("token_store_failing) == 1", "token_store_failing) == 2"))
        done = promtool("test", "rules", "alerts_test.yaml", folder=tmp_path)
        assert done.returncode != 0
        assert "OstiaryGatewayTokenStoreFailing" in done.stderr

    def test_every_alert_is_tried_when_it_fires_and_when_it_does_not(self) -> None:
        cases = [case for test in TESTS for case in test["alert_rule_test"]]
        alerts = {rule["alert"] for rule in RULES}
        assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
        assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts

    def test_an_alert_says_how_urgent_it_is_and_where_to_read_on(self, subtests: pytest.Subtests) -> None:
        for rule in RULES:
            with subtests.test(rule["alert"]):
                assert rule["labels"]["severity"] in ("critical", "warning")
                assert rule["annotations"].keys() == {"summary", "description", "runbook"}
                page, _, anchor = rule["annotations"]["runbook"].partition("#")
                headings = re.findall(r"^### (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
                assert rule["alert"] in headings
                assert anchor == rule["alert"].lower()

    def test_there_is_no_runbook_for_an_alert_that_is_gone(self) -> None:
        page = (ROOT / "docs/how-to/operate.md").read_text()
        headings = re.findall(r"^### (Ostiary\w+)$", page, re.MULTILINE)
        assert sorted(headings) == sorted(rule["alert"] for rule in RULES)


class TestForThePrometheusOperator:
    def test_the_operator_knows_every_field(self, tmp_path: Path) -> None:
        rendered = render_kustomize(KUSTOMIZE / "monitoring", tmp_path)
        assert {each["kind"] for each in rendered} == {"PodMonitor", "PrometheusRule"}
        assert [mistake for each in rendered for mistake in mistakes(each)] == []

    def test_a_misspelt_field_is_noticed(self, tmp_path: Path) -> None:
        (monitor,) = (
            each for each in render_kustomize(KUSTOMIZE / "monitoring", tmp_path) if each["kind"] == "PodMonitor"
        )
        monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
        assert len(mistakes(monitor)) == 1

    def test_it_gets_the_rules_that_are_tried_here(self, tmp_path: Path) -> None:
        (rule,) = (
            each for each in render_kustomize(KUSTOMIZE / "monitoring", tmp_path) if each["kind"] == "PrometheusRule"
        )
        assert rule["spec"] == yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())


class TestMetrics:
    def test_every_metric_and_label_exists(self, subtests: pytest.Subtests) -> None:
        families = Metrics().snapshot()
        for where, expression in expressions():
            with subtests.test(where=where, expression=expression):
                names = set(re.findall(rf"\b{NAMESPACE}\w+", expression))
                assert names or "up{" in expression
                labels = set(LABELS_OF_EVERY_SERIES)
                for name in names:
                    family = families.get(name) or families.get(re.sub("_(bucket|count|sum)$", "", name))
                    assert family is not None, f"{where}: there is no metric {name}"
                    assert (family["type"] == "histogram") == (name not in families), f"{where}: {name}"
                    labels |= set(family["labels"])
                assert labels_in(expression) <= labels, where

    def test_every_metric_of_the_gateway_is_on_the_dashboard(self) -> None:
        shown = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
        assert [name for name in Metrics().snapshot() if name not in shown] == []


def labels_in(expression: str) -> set[str]:
    matched = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression)
    grouped = [name for names in re.findall(r"by \(([^)]*)\)", expression) for name in names.split(", ")]
    return {*matched, *grouped}


class TestDashboard:
    def test_prometheus_can_read_every_expression(self, tmp_path: Path) -> None:
        rules = [
            {"record": f"dashboard:expression:{number}", "expr": without_variables(target["expr"])}
            for number, target in enumerate(target for panel in PANELS for target in panel["targets"])
        ]
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
        done = promtool("check", "rules", "rules.yaml", folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_panels_have_ids_of_their_own_and_do_not_overlap(self) -> None:
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        assert len(ids) == len(set(ids))
        taken: set[tuple[int, int]] = set()
        for panel in DASHBOARD["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            assert max(x for x, _ in cells) < 24
            taken |= cells

    def test_the_data_source_is_the_readers_choice(self) -> None:
        (variable,) = (each for each in DASHBOARD["templating"]["list"] if each["type"] == "datasource")
        chosen = {"type": "prometheus", "uid": "${" + variable["name"] + "}"}
        used = [panel["datasource"] for panel in PANELS]
        used += [target["datasource"] for panel in PANELS for target in panel["targets"]]
        used += [each["datasource"] for each in DASHBOARD["templating"]["list"] if "datasource" in each]
        assert all(each == chosen for each in used)


def without_variables(expression: str) -> str:
    return expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
