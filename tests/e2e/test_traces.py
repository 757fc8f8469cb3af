"""A gateway in a process of its own that traces: what a collector gets, what the upstream is told, what joins them.

The collector stands in for an OpenTelemetry collector and speaks OTLP over HTTP, with TLS and an API key.
"""

from __future__ import annotations

import json
import signal
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary_gateway.cli import main
from tests.support.cluster import Cluster
from tests.support.collector import CLIENT, SERVER, Collector, collecting, plain
from tests.support.gateway import ServedGateway, Site, password, role
from tests.support.metrics import samples
from tests.support.waiting import until

PODS = "/api/v1/namespaces/team/pods"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
API_KEY = "key-of-the-collector"


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice")
    site.policy(role("team", "pods", User="alice"))
    (site.folder / "collector-headers").write_text(f"X-Api-Key: {API_KEY}\n")
    return site


@pytest.fixture
def cluster(ca: trustme.CA) -> Any:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


@pytest.fixture
def collector(ca: trustme.CA) -> Any:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("localhost").configure_cert(context)
    with collecting(context) as collector:
        yield collector


def traced(collector: Collector, **more: Any) -> dict[str, Any]:
    files = {"tls": {"ca": "ca.pem"}, "headersFile": "collector-headers"}
    return {"endpoint": collector.url, "wait": "10ms", **files, **more}


def counted(gateway: ServedGateway, name: str) -> float:
    page = gateway.probe("/metrics").content
    return sum(value for (series, _), value in samples(page).items() if series == f"ostiary_gateway_{name}")


def test_trace_audit_event_and_explanation_of_a_request_are_joined(
    site: Site, cluster: Cluster, collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    sections: dict[str, Any] = {"upstreams": [site.impersonating(cluster)], "tracing": traced(collector)}
    with site.serving(**sections, audit={"log": {"path": "audit.log"}, "blocking": True}) as gateway:
        token = gateway.login("alice").token
        allowed = gateway.get(f"{PODS}?limit=7", token, headers={"traceparent": PARENT, "tracestate": "a=1"})
        refused = gateway.get("/api/v1/namespaces/other/pods", token)
        assert (allowed.status_code, refused.status_code) == (200, 403)
        until(lambda: len(collector.of_kind(SERVER)) == 3)
        until(lambda: counted(gateway, "spans_sent_total") == len(collector.spans))
        assert counted(gateway, "spans_dropped_total") == 0
        sign_in, first, second = collector.of_kind(SERVER)
        # The upstream continues the trace below the gateway's own span; the client's is only linked.
        (client,) = collector.of_kind(CLIENT)
        (record,) = cluster.to(PODS)
        assert record.values("traceparent") == [f"00-{first.trace_id.hex()}-{client.span_id.hex()}-01"]
        assert record.values("tracestate") == []
        assert [link.trace_id.hex() for link in first.links] == [PARENT.split("-")[1]]
        assert [span.name for span in collector.children(first)] == ["authenticate", "authorize", "admit", "GET"]
        # The same id in the answer, the upstream's request, the audit event, the trace and the explanation.
        for span, answer in ((first, allowed), (second, refused)):
            audit_id = answer.headers["Audit-Id"]
            assert plain(span.attributes)["ostiary.audit_id"] == audit_id
            assert [event["auditID"] for event in site.events()].count(audit_id) >= 1
        assert record.value("Audit-Id") == allowed.headers["Audit-Id"]
        assert plain(second.attributes)["ostiary.decision"] == "no opinion"
        assert plain(first.attributes)["url.scheme"] == "https"
        assert plain(client.attributes)["url.scheme"] == "https"
        words = ["explain", refused.headers["Audit-Id"], "--config", str(site.folder / "gateway.yaml"), "-o", "json"]
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["id"] == plain(second.attributes)["ostiary.audit_id"]
        (signing_in,) = [span for span in collector.children(sign_in) if span.name == "sign-in"]
        names = [span.name for span in collector.children(signing_in)]
        assert names == ["ask identity provider", "look up groups", "issue tokens"]
    everything = str(collector.spans) + str(collector.requests)
    for secret in (token, password("alice"), API_KEY, "limit=7", "alice"):
        assert secret not in everything
    assert {headers["x-api-key"] for headers in collector.headers} == {API_KEY}
    assert collector.resource["service.name"] == "ostiary-gateway"
    assert API_KEY not in gateway.stderr


@pytest.mark.slow
def test_a_dead_collector_slows_and_fails_no_request_and_is_logged_once(site: Site, cluster: Cluster) -> None:
    tracing = {"endpoint": "http://127.0.0.1:1/v1/traces", "wait": "1ms", "batch": 5, "buffer": 5}
    with site.serving(upstreams=[site.impersonating(cluster)], tracing=tracing) as gateway:
        token = gateway.login("alice").token
        with gateway.http(token) as http:
            assert {http.get(PODS).status_code for _ in range(20)} == {200}
        until(lambda: counted(gateway, "spans_dropped_total") >= 5 * 15)
        assert counted(gateway, "spans_sent_total") == 0
        gateway.line("the collector of traces does not accept spans")
        # It is stopped at once, too.
    lines = [line for line in gateway.lines if "the collector of traces" in line]
    assert len(lines) == 1
    assert "ConnectError" in lines[0]


@pytest.mark.slow
def test_two_workers_trace_and_what_is_left_is_sent_at_the_end(
    site: Site, cluster: Cluster, collector: Collector
) -> None:
    sections: dict[str, Any] = {"listen": {"workers": 2}, "upstreams": [site.impersonating(cluster)]}
    with site.serving(**sections, tracing=traced(collector, wait="1h", batch=5000)) as gateway:
        token = gateway.login("alice").token
        for _ in range(20):
            assert gateway.get(PODS, token).status_code == 200
        assert collector.posts == 0
    assert len(collector.of_kind(CLIENT)) == 20
    assert len({span.trace_id for span in collector.of_kind(SERVER)}) == 21


@pytest.mark.slow
def test_a_reload_takes_up_tracing(site: Site, cluster: Cluster, collector: Collector) -> None:
    upstreams = [site.impersonating(cluster)]
    with site.serving(upstreams=upstreams) as gateway:
        token = gateway.login("alice").token
        assert gateway.get(PODS, token, headers={"traceparent": PARENT}).status_code == 200
        assert cluster.to(PODS)[-1].values("traceparent") == [PARENT], "without tracing it is a header like any other"
        site.write_config(upstreams=upstreams, tracing=traced(collector))
        gateway.signal(signal.SIGHUP)
        gateway.line("the configuration was reloaded")
        assert gateway.get(PODS, token, headers={"traceparent": PARENT}).status_code == 200
        until(lambda: len(collector.of_kind(SERVER)) == 1)
        assert cluster.to(PODS)[-1].values("traceparent") != [PARENT]
