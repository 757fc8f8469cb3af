"""The token store is full, locked or gone: what was to end has ended, nobody goes on unseen, and probes say so."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, ServedGateway, Site, role
from tests.support.small_disk import Filler, small_disk

PODS = "/api/v1/namespaces/team/pods"


@contextmanager
def serving(ca: trustme.CA, folder: Path, store: Path, workers: int) -> Iterator[ServedGateway]:
    site = Site(folder, ca)
    site.users("alice", "bob")
    site.policy(role("team", "pods", User="alice"), role("team", "pods", User="bob"))
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        served = site.serving(
            listen={"workers": workers},
            tokens={"maxStale": "1s"},
            limits={"failuresPerMinute": 0},
            store={"type": "sqlite", "path": str(store)},
            upstreams=[site.impersonating(cluster)],
        )
        with served as gateway:
            # All workers have opened the store by then.
            until_ready(gateway, ready=True)
            yield gateway


def statuses(gateway: ServedGateway, token: str, *, times: int = 20) -> set[int]:
    """What the workers answer: each connection is another one's."""
    return {gateway.get(PODS, token).status_code for _ in range(times)}


def until_all(gateway: ServedGateway, token: str, status: int) -> None:
    """Ask until everybody answers so: other workers have no other sign."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(httpx.RemoteProtocolError):
            answered = statuses(gateway, token)
            if answered == {status}:
                return
    raise AssertionError(f"not all of them answered {status}: {answered}")


def until_ready(gateway: ServedGateway, *, ready: bool) -> httpx.Response:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        answer = gateway.probe("/readyz")
        if (answer.status_code == 200) is ready:
            return answer
        time.sleep(0.01)
    raise AssertionError(answer.text)


workers = pytest.mark.parametrize(
    "workers", [pytest.param(1, id="one worker"), pytest.param(2, id="two workers", marks=pytest.mark.slow)]
)


@pytest.mark.slow
@workers
def test_when_the_store_is_full_a_logout_holds_all_the_same_and_readiness_says_so(
    ca: trustme.CA, tmp_path: Path, workers: int
) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk, serving(ca, tmp_path / "site", disk / "t.db", workers) as gateway:
        hers, his = gateway.login("alice"), gateway.login("bob")
        assert statuses(gateway, hers.token) == {200}
        filler = Filler(disk)
        filler.fill()
        assert "token store: it cannot be written" in until_ready(gateway, ready=False).text
        assert gateway.metric("ostiary_gateway_token_store_failing") == 1
        # Small writes may fit into what is left of the store's own files.
        with gateway.http(hers.token) as http:
            assert http.post("/auth/logout").status_code in (204, 200, 503)
        until_all(gateway, hers.token, 401)
        renewal = httpx.post(
            f"{gateway.url()}/auth/renew",
            data={"renewal_token": hers.renewal_token},
            headers={"Accept": "application/json"},
            verify=gateway.trust,
            timeout=SECONDS,
        )
        assert renewal.status_code == 401
        assert statuses(gateway, his.token) == {200}
        filler.make_room()
        until_ready(gateway, ready=True)
        gateway.stop()
        gateway.start()
        assert statuses(gateway, hers.token) == {401}, "it was written down when there was room"
        assert statuses(gateway, his.token) == {200}


@pytest.mark.slow
@workers
def test_when_the_store_is_locked_a_logout_is_told_to_have_failed_and_holds_all_the_same(
    ca: trustme.CA, tmp_path: Path, workers: int
) -> None:
    store = tmp_path / "t.db"
    with serving(ca, tmp_path / "site", store, workers) as gateway:
        hers, his = gateway.login("alice"), gateway.login("bob")
        assert statuses(gateway, hers.token) == {200}
        with closing(sqlite3.connect(store, isolation_level=None)) as neighbour:
            neighbour.execute("BEGIN IMMEDIATE")
            with gateway.http(hers.token) as http:
                assert http.post("/auth/logout").status_code == 503
            until_all(gateway, hers.token, 401)
            assert statuses(gateway, his.token) == {200}
            assert "token store: it" in until_ready(gateway, ready=False).text
            neighbour.execute("ROLLBACK")
        until_ready(gateway, ready=True)
        gateway.line("a revocation took effect")
        until_all(gateway, hers.token, 401)
        again = gateway.login("alice")
        assert statuses(gateway, again.token) == {200}


@workers
def test_a_worker_that_cannot_confirm_the_revocations_answers_503(ca: trustme.CA, tmp_path: Path, workers: int) -> None:
    """What was in memory is not good for longer than `maxStale` when the store is gone."""
    store = tmp_path / "t.db"
    with serving(ca, tmp_path / "site", store, workers) as gateway:
        token = gateway.login("alice").token
        assert statuses(gateway, token) == {200}
        store.rename(tmp_path / "elsewhere.db")
        until_all(gateway, token, 503)
        told = until_ready(gateway, ready=False).text
        assert "revocations: not confirmed for" in told
        gateway.line("revocations cannot be confirmed: requests are refused with 503")
        assert gateway.metric("ostiary_gateway_revocations_confirmed_seconds") > 1
