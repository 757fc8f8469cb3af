"""``ostiary-gateway policy shadow``: what it prints, and when it fails a build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostiary_gateway.cli import main
from tests.support.gateway import GatewayFolder, role
from tests.unit.ostiary_gateway.policy.test_disagreements import event

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    return GatewayFolder(tmp_path)


def run(capsys: Captured, *events: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
    Path("audit.log").write_text("".join(f"{line}\n" for line in events))
    code = main(["policy", "shadow", *options, "audit.log"])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_disagreements_are_told_with_both_reasons_and_the_rule(capsys: Captured, site: GatewayFolder) -> None:
    site.policy(role("team", "pods", User="alice"))
    events = (event("only_gateway_allows"), event("only_gateway_allows"), event("agree"), event("unknown"))
    code, out, err = run(capsys, *events, options=("--config", "gateway.yaml"))
    assert code == 1
    lines = out.splitlines()
    assert lines[0] == 'only the gateway allows User "alice" to get pods in namespace "team"'
    assert lines[1].startswith("  when     2 times, 2026-01-01T00:00:00Z to 2026-01-01T00:00:00Z, such as id")
    assert lines[2:4] == ["  gateway  ours", "  cluster  theirs"]
    assert lines[4].startswith("  rule now RBAC: allowed by RoleBinding")
    assert lines[5] == "3 decisions compared: 2 differ"
    assert "1 requests could not be asked about, the last because theirs" in err


@pytest.mark.parametrize(
    ("fail_on", "outcome", "code"),
    [
        ("any", "only_gateway_allows", 1),
        ("any", "only_cluster_allows", 1),
        ("any", "agree", 0),
        ("gateway-allows", "only_cluster_allows", 0),
        ("gateway-allows", "only_gateway_allows", 1),
        ("cluster-allows", "only_gateway_allows", 0),
        ("cluster-allows", "only_cluster_allows", 1),
        ("never", "only_gateway_allows", 0),
    ],
)
def test_the_exit_code_is_what_was_asked_for(capsys: Captured, fail_on: str, outcome: str, code: int) -> None:
    assert run(capsys, event(outcome), options=("--fail-on", fail_on))[0] == code


@pytest.mark.parametrize("events", [(), (event("unknown"),), (event("agree", stage="ResponseComplete"),)])
def test_where_nothing_was_compared_the_gate_is_shut(capsys: Captured, events: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *events, options=("--fail-on", "never"))
    assert (code, out) == (1, "")
    assert "no decisions that were compared" in err


def test_json_has_everything(capsys: Captured) -> None:
    code, out, _ = run(capsys, event("only_cluster_allows"), event("agree"), options=("-o", "json"))
    told = json.loads(out)
    (each,) = told["disagreements"]
    assert (code, told["agreed"], told["unknown"], told["unreadable"]) == (1, 1, 0, 0)
    assert (each["allows"], each["user"], each["verb"], each["namespace"]) == ("cluster", "alice", "get", "team")
    assert (each["gatewayReason"], each["clusterReason"], each["count"]) == ("ours", "theirs", 1)


def test_a_name_cannot_forge_a_line(capsys: Captured) -> None:
    forged = event("only_gateway_allows", user={"username": 'x"\n1 decisions compared: all agree\x1b[2J'})
    _, out, _ = run(capsys, forged)
    assert "\x1b" not in out
    assert out.splitlines()[-1] == "1 decisions compared: 1 differ"
    assert sum(line.startswith("1 decisions") for line in out.splitlines()) == 1
