"""The figures can be made: each kind of candidate, the load, and what is read from it. Their size is not tested."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from bench import kube_rbac_proxy, rates
from bench.beside.everyone import IN_GO, Everyone, everyone
from bench.beside.load import Requests, take_sample, write_requests
from bench.beside.pairs import Turns, compare, load_row
from bench.beside.plain import NGINX
from bench.beside.with_us import ENVOY_ASKS, HAPROXY_KEEPS, OURS, US
from bench.heads import TARGET, requests_of
from tests.support.tiers import missing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everyone]:
    lacking = [program for program in ("nginx", "wrk", "h2load", "haproxy", "taskset") if not shutil.which(program)]
    if lacking:
        missing(*lacking)
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kube_rbac_proxy, "PROGRAM", folder / "not-built")
        with everyone(folder, secure=True, wanted=(ENVOY_ASKS, HAPROXY_KEEPS, IN_GO), role="view") as started:
            yield started


@pytest.fixture(scope="module")
def new_targets(candidates: Everyone) -> dict[str, Requests]:
    texts = requests_of(candidates.tokens[""], TARGET)
    return {"": write_requests(candidates.site.folder / "requests", texts)}


def test_candidates_are_compared_with_nginx_over_tls(
    candidates: Everyone, new_targets: dict[str, Requests], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTIARY_BENCH_QUICK", "1")
    pairs = compare(
        candidates.nginx, candidates.others, candidates.site, new_targets, what="new target", plan={"": Turns(5, 2)}
    )
    ours = [OURS] if candidates.on_system_python is None else list(US)
    assert [each.name for each in pairs] == [*ours, ENVOY_ASKS, HAPROXY_KEEPS]
    rows = [*load_row(pairs, "new target"), *(each.row("new target") for each in pairs)]
    assert [row.what for row in rows[:3]] == [
        f"new target: {NGINX}",
        f"new target: {OURS} used",
        f"new target: {OURS} / {NGINX}",
    ]
    for each in pairs:
        assert len(each.samples) == 1
        assert all(each.median(figure) > 0 for figure in ("per_second", "p50_ms", "p99_ms", "cpu_us", "core"))


def test_a_new_target_was_never_there_before(candidates: Everyone, new_targets: dict[str, Requests]) -> None:
    log = candidates.site.folder / "gateway" / "audit.log"
    before = len(log.read_text().splitlines())
    for _ in range(2):
        take_sample(candidates.ours, candidates.site, new_targets[""], seconds=1, connections=4)
    targets = [json.loads(line)["requestURI"] for line in log.read_text().splitlines()[before:]]
    assert len(targets) > 100
    assert len(set(targets)) == len(targets)


def test_latency_is_read_at_a_fixed_rate(candidates: Everyone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "SECONDS", 1)
    turn = rates.take_turn(candidates.ours, candidates, 500)
    assert 0 < turn.p50_ms <= turn.p99_ms
    assert 0 < turn.core < 1


def test_a_peer_that_is_not_there_is_named(candidates: Everyone) -> None:
    (row,) = candidates.missing_rows("new target")
    assert (row.what, row.measured) == (f"new target: {IN_GO}", "not on this machine: needs Go and its module proxy")
