"""A real Prometheus scrapes a real gateway: the rules are evaluated, and every panel of the dashboard has an answer."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import yaml

from tests.interop.support.process import wait_until
from tests.support.deploy.render import ROOT
from tests.support.gateway import ServedGateway, Site, role
from tests.support.ports import free_port
from tests.support.tiers import missing

DASHBOARD = json.loads((ROOT / "deploy/grafana/ostiary-gateway.json").read_text())
# Panels about what has not happened in this test: sign-ins that failed, revocations, limits, upstreams.
WITH_DATA = {
    "Replicas seen",
    "Requests",
    "Revocations confirmed",
    "Token store",
    "Open streams",
    "Requests by code",
    "Replicas by version",
    "Sign-ins by result",
    "Audit events",
    "Certificate expires in",
}


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = f"{url}/api/v1"

    def ask(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(self._url + path, params=parameters, trust_env=False, timeout=30)
        assert answer.status_code == 200, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    def value(self, expression: str) -> list[Any]:
        result: list[Any] = self.ask("/query", query=expression)["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.ask("/rules")["groups"] for rule in group["rules"]]

    def state(self, alert: str) -> str:
        (rule,) = (each for each in self.rules() if each["name"] == alert)
        return str(rule["state"])


@contextmanager
def running(folder: Path, target: str) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        missing("prometheus")
    folder.mkdir()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "deploy/prometheus/alerts.yaml")],
        "scrape_configs": [{"job_name": "ostiary-gateway", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *options, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://{address}")
        wait_until(lambda: is_ready(address), what="Prometheus", told=(folder / "log").read_text)
        yield prometheus
    finally:
        process.kill()
        process.wait(30)


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def gateway(tmp_path: Path, ca: trustme.CA) -> Iterator[ServedGateway]:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice")
    site.policy(role("", {"nonResourceURLs": ["/*"], "verbs": ["get"]}, User="alice"))
    with site.serving() as gateway:
        yield gateway


def test_prometheus_evaluates_the_rules_and_answers_the_dashboard(gateway: ServedGateway, tmp_path: Path) -> None:
    with running(tmp_path / "prometheus", gateway.health.removeprefix("http://")) as prometheus:
        counted = "ostiary_gateway_requests_total"
        token = gateway.login("alice").token

        def has_seen_requests_twice() -> bool:
            gateway.get("/anything", token)
            return bool(prometheus.value(f"rate({counted}[10s]) > 0"))

        wait_until(has_seen_requests_twice, what="two scrapes")
        wait_until(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()), what="the rules")
        assert [rule["name"] for rule in prometheus.rules() if rule["state"] == "firing"] == []
        empty = {
            panel["title"]
            for panel in DASHBOARD["panels"]
            for target in panel.get("targets", ())
            if not prometheus.value(target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*"))
        }
        assert not empty & WITH_DATA
        gateway.stop()
        wait_until(lambda: prometheus.state("OstiaryGatewayReplicaDown") == "pending", what="the alert")
