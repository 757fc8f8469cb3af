"""The page of the replicas tells what is wrong with which one, and quotes nothing as HTML."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from ostiary.model import Secret, UserInfo
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.login.admin.replicas import replicas_page
from ostiary_gateway.login.admin.tables import REPLICAS, AdminFrame
from ostiary_gateway.login.browser_session import Visitor
from ostiary_gateway.replicas.drift import Heard, compare
from ostiary_gateway.replicas.replica import Replica

GOOD = Replica(
    id="a",
    host="node-a",
    pid=41,
    version="1.0",
    configuration="c0ffee",
    configuration_key="k",
    configured_seconds=600.0,
    up_seconds=7200.0,
    revocation=7,
    head=7,
    confirmed_seconds=0.4,
    max_stale=5.0,
    requests_per_second=12.5,
    in_flight=3,
    open_streams=2,
    tokens=9,
)
SESSION = Session("s", UserInfo("root"), "staff", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
VISITOR = Visitor(SESSION, Secret("secret"))
B = replace(GOOD, id="b", host="node-b")


def body(*replicas: Replica | Heard) -> str:
    heard = [each if isinstance(each, Heard) else Heard(each) for each in replicas]
    page = replicas_page(compare(heard), AdminFrame(VISITOR, [REPLICAS]))
    return page.body.decode().partition("<main")[2].partition("<script")[0]


def test_all_is_well() -> None:
    shown = body(GOOD, B)
    assert "All replicas are ready and have the same configuration." in shown
    assert "c0ffee, the same as most, loaded 10m ago" in shown
    assert "up to number 7, confirmed 0.4 s ago" in shown
    assert "12.5 requests/s, 3 in flight, 2 open streams; tokens in use: 9" in shown
    assert "for 2h, 1 worker, process 41" in shown
    assert "bad" not in shown


def test_another_configuration_is_marked_gently() -> None:
    shown = body(GOOD, replace(GOOD, id="c", host="node-c"), replace(B, configuration="0ther"))
    assert "Another configuration than most: node-b. During an update this is normal." in shown
    assert shown.count("another configuration") == 1
    assert "0ther, not that of most replicas" in shown


def test_what_is_wrong_is_told() -> None:
    shown = body(GOOD, replace(B, trouble="token store: unavailable", revocation=5))
    assert "Not ready: node-b." in shown
    assert "token store: unavailable" in shown
    assert "up to number 5, 2 behind" in shown
    assert "silent for 12 s" in body(GOOD, Heard(B, 12.0))


def test_a_replica_without_workers_has_no_configuration() -> None:
    shown = body(replace(GOOD, configuration="", revocation=None, workers=0, trouble="no worker answers"))
    assert "not compared yet" in shown
    assert "not confirmed yet" in shown
    assert "0 workers" in shown


def test_a_name_that_looks_like_html_is_a_name() -> None:
    shown = body(replace(GOOD, host="<b>x</b>", version="<i>", trouble="<script>", configuration="<u>"))
    for tag in ("<b>", "<i>", "<script>", "<u>"):
        assert tag not in shown
