"""``ostiary-gateway explain`` from an audit log. Against a running gateway it is tried in tests/e2e."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ostiary_gateway.cli import main
from tests.support.gateway import GatewayFolder, role

Captured = pytest.CaptureFixture[str]
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}


def event(audit_id: str, decision: str = "forbid") -> str:
    told = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": audit_id,
        "stage": "ResponseComplete",
        "requestURI": "/api/v1/namespaces/team/pods/web",
        "verb": "delete",
        "user": {"username": "alice", "groups": ["dev"]},
        "objectRef": {"resource": "pods", "namespace": "team", "name": "web", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 403},
        "requestReceivedTimestamp": "2026-01-31T12:00:00.000000Z",
        "stageTimestamp": "2026-01-31T12:00:00.000100Z",
        "annotations": {"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": "because"},
    }
    return json.dumps(told) + "\n"


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    site = GatewayFolder(tmp_path)
    site.policy(role("team", READ, User="alice"))
    site.audit_log.write_text(event("id-0") + event("id-1"))
    return site


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["explain", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_refusal_is_explained_by_its_id(capsys: Captured) -> None:
    """Idea 2."""
    code, out, _ = run(capsys, "id-1")
    assert code == 0
    assert out.startswith(
        "id-1, 2026-01-31T12:00:00+00:00\n"
        '  asked    User "alice" (groups: dev): delete pods "web" in namespace "team"\n'
        "  then     refused: because\n"
        "  now      refused\n"
    )
    assert 'failed   verb: the rule allows "get" and not "delete"' in out
    assert "The smallest rule that would allow it:" in out


def test_a_policy_that_was_mended_meanwhile_is_seen(capsys: Captured, site: GatewayFolder) -> None:
    site.policy(role("team", "pods", User="alice"))
    told = json.loads(run(capsys, "id-1", "-o", "json")[1])
    assert (told["then"]["verdict"], told["now"]["decision"]["verdict"]) == ("no opinion", "allow")


def test_rotated_logs_are_looked_through_too(capsys: Captured, site: GatewayFolder) -> None:
    os.rename(site.audit_log, site.folder / "audit.log.1")
    (site.folder / "audit.log.2.gz").write_bytes(b"\x1f\x8b")
    assert run(capsys, "ID-1")[0] == 0


def test_other_logs_can_be_named(capsys: Captured, site: GatewayFolder) -> None:
    (site.folder / "old").write_text(event("id-9", "allow"))
    assert "then     allowed: because" in run(capsys, "id-9", "--audit-log", "old")[1]


def test_an_unknown_id_is_told_with_where_was_looked(capsys: Captured, site: GatewayFolder) -> None:
    code, out, err = run(capsys, "id-7")
    assert (code, out) == (1, "")
    assert f"where  {site.audit_log}" in err
    assert "code   decision-not-found" in err


def test_a_gateway_without_an_audit_log_says_what_else_can_be_done(capsys: Captured, site: GatewayFolder) -> None:
    site.write_config(audit={})
    code, _, err = run(capsys, "id-1")
    assert code == 1
    assert "--server" in err
    assert "code   decision-not-found" in err


@pytest.mark.parametrize(
    "options",
    [
        ("--server", "https://localhost:1", "--config", "gateway.yaml"),
        ("--server", "https://localhost:1", "--token-file", "token", "--account", "admin"),
        ("--server", "https://localhost:1", "--account", ""),
        ("--server", ""),
        ("--server", "https://localhost:1", "--audit-log", "x"),
        ("--server", "https://localhost:1", "--token-file", "token", "--audit-log", "x"),
        ("--token-file", "token"),
        ("--account", "admin"),
        ("--server", "http://gateway.example.com", "--token-file", "token"),
        ("--server", "gateway.example.com", "--token-file", "token"),
        ("--server", "https://a:b@localhost", "--token-file", "token"),
        ("--server", "https://localhost:port", "--token-file", "token"),
    ],
)
def test_options_that_do_not_go_together_are_refused(capsys: Captured, options: tuple[str, ...]) -> None:
    code, out, err = run(capsys, "id-1", *options)
    assert (code, out) == (2, "")
    assert "code   usage" in err
