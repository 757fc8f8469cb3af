"""A full disk under the audit log of several workers: whatever was answered stands there, on a line of its own."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import ServedGateway, Site, role, threads
from tests.support.small_disk import Filler, small_disk

pytestmark = pytest.mark.slow

PODS = "/api/v1/namespaces/team/pods"
CLIENTS, REQUESTS = 4, 40


def ask(gateway: ServedGateway, token: str, answered: list[str]) -> None:
    """Some requests of different lengths, so that the disk is full at different places of a line."""
    for number in range(REQUESTS):
        with gateway.http(token) as http:
            answer = http.get(f"{PODS}?x={'y' * (number * 37 % 400)}")
            if answer.status_code == 200:
                answered.append(answer.headers["audit-id"])


@pytest.mark.parametrize("blocking", [True, False])
def test_records_never_share_a_line(ca: trustme.CA, tmp_path: Path, blocking: bool) -> None:
    site = Site(tmp_path / "site", ca)
    site.users("alice")
    site.policy(role("team", "pods", User="alice"))
    answered: list[list[str]] = [[], [], []]
    with small_disk(tmp_path / "disk", "4m") as disk, Cluster(ca) as cluster:
        cluster.add_namespace("team")
        log = disk / "audit.log"
        audit = {"log": {"path": str(log)}, "blocking": blocking}
        upstreams = [site.impersonating(cluster)]
        with site.serving(listen={"workers": 2}, audit=audit, upstreams=upstreams) as gateway:
            token, filler = gateway.login("alice").token, Filler(disk)
            for ids in answered:
                if ids is answered[1]:
                    filler.fill()
                with threads(*([partial(ask, gateway, token, ids)] * CLIENTS)):
                    pass
                if ids is answered[1]:
                    filler.make_room()
        lines = log.read_text().splitlines()
    whole = set()
    for line in lines:
        try:
            whole.add(json.loads(line)["auditID"])
        except ValueError:
            # Half a record: it begins like one, and no other is in it.
            assert line.startswith('{"kind"')
            assert line.count('"auditID"') <= 1
    before, _, after = answered
    assert whole.issuperset(before)
    assert whole.issuperset(after)
    assert len(after) == CLIENTS * REQUESTS
