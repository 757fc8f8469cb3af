"""``ostiary-gateway policy``: what it prints, and when it fails a build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.cli import main
from tests.support.gateway import GatewayFolder, role

Captured = pytest.CaptureFixture[str]
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    return GatewayFolder(tmp_path)


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["policy", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


# --- lint ---


def test_a_good_policy_has_nothing_to_mend(capsys: Captured, site: GatewayFolder) -> None:
    site.policy(role("team", READ, User="alice"))
    assert run(capsys, "lint", "policy") == (0, "no problems\n", "")


def test_findings_have_their_place_and_their_fix(capsys: Captured, site: GatewayFolder) -> None:
    site.policy(role("team", {**READ, "resources": ["pods/*"]}, User="alice"))
    code, out, _ = run(capsys, "lint", "policy")
    assert code == 1
    assert out.startswith("ERROR subresource-star  policy/policy.yaml:")
    assert "  what   " in out
    assert "  fix    " in out
    assert out.endswith("1 error\n")
    (finding,) = json.loads(run(capsys, "lint", "policy", "-o", "json")[1])["findings"]
    assert (finding["rule"], finding["level"], finding["file"]) == ("subresource-star", "error", "policy/policy.yaml")


def test_the_file_name_or_the_type_option_selects_the_provider(capsys: Captured, site: GatewayFolder) -> None:
    (site.folder / "p.cedar").touch()
    for options in (("p.cedar",), ("--type", "cedar", "p.cedar")):
        code, _, err = run(capsys, "lint", *options)
        assert (code, 'the authorization provider "cedar" has no lint rules' in err) == (1, True)
    assert "code   plugin-not-found" in run(capsys, "lint", "--type", "nonsense", "p.cedar")[2]


def test_a_configuration_is_no_policy(capsys: Captured) -> None:
    """It has no RBAC in it, and so would be found without a mistake."""
    code, _, err = run(capsys, "lint", "gateway.yaml")
    assert code == 2
    assert "ostiary-gateway serve --check --config gateway.yaml" in err


# --- diff ---


@pytest.fixture
def two(site: GatewayFolder) -> None:
    site.policy(role("team", READ, User="alice"), folder="old")
    site.policy(role("team", {**READ, "verbs": ["get"]}, User="alice"), role("team", READ, Group="dev"), folder="new")


@pytest.mark.usefixtures("two")
def test_who_gains_and_who_loses_is_told(capsys: Captured) -> None:
    """Idea 3."""
    code, out, _ = run(capsys, "diff", "old", "new")
    assert code == 1
    assert out == (
        'User "alice"\n  - list on pods in namespace "team"\n'
        'Group "dev"\n  + get, list on pods in namespace "team"\n'
        "gains: 1, losses: 1\n"
    )


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("old", "new", "fail_on", "code"),
    [
        ("old", "old", "any", 0),
        ("old", "new", "loss", 1),
        ("old", "new", "any", 1),
        ("old", "new", "never", 0),
        ("new", "old", "gain", 1),
    ],
)
def test_what_fails_the_build_is_chosen(capsys: Captured, old: str, new: str, fail_on: str, code: int) -> None:
    assert run(capsys, "diff", old, new, "--fail-on", fail_on)[0] == code


def test_only_losses_pass_by_default(capsys: Captured, site: GatewayFolder) -> None:
    site.policy(role("", READ, {"nonResourceURLs": ["/m"], "verbs": ["get"]}, User="alice"), folder="old")
    site.policy(folder="new")
    code, out, _ = run(capsys, "diff", "old", "new", "-o", "json")
    told = json.loads(out)
    assert (code, told["gains"], told["losses"]) == (0, 0, 2)
    subject = {"kind": "User", "name": "alice", "namespace": ""}
    pods = {"resources": ["pods"], "group": "", "namespace": "", "name": ""}
    assert told["changes"] == [
        {"effect": "loss", "subject": subject, "verbs": ["get", "list"], **pods},
        {"effect": "loss", "subject": subject, "verbs": ["get"], "paths": ["/m"]},
    ]


@pytest.mark.usefixtures("two")
def test_whole_configurations_are_compared(capsys: Captured, site: GatewayFolder) -> None:
    chain = {"chain": [{"name": "cluster", "type": "rbac", "paths": ["new"]}]}
    everything = {"chain": [{"name": "all", "type": "allow_all"}]}
    site.write_config("new.yaml", authorization=chain)
    site.write_config("all.yaml", authorization=everything)
    assert 'Group "dev"' in run(capsys, "diff", "old", "new.yaml")[1]
    code, out, _ = run(capsys, "diff", "new.yaml", "all.yaml")
    assert (code, "+ * on * of API group *" in out) == (1, True)


def test_policies_that_cannot_be_listed_are_not_called_equal(capsys: Captured, site: GatewayFolder) -> None:
    link = {"name": "far", "type": "subject_access_review", "server": "https://127.0.0.1:1", "tokenFile": "token"}
    site.write_config(authorization={"chain": [link]})
    code, out, err = run(capsys, "diff", "gateway.yaml", "gateway.yaml")
    assert (code, out) == (1, "")
    assert "ostiary-gateway policy replay" in err


# --- replay ---


def event(number: int, user: str, verb: str, decision: str) -> str:
    told: dict[str, Any] = {
        "kind": "Event",
        "auditID": f"id-{number}",
        "stage": "ResponseComplete",
        "requestURI": f"/api/v1/namespaces/team/pods/web-{number}",
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"resource": "pods", "namespace": "team", "name": f"web-{number}", "apiVersion": "v1"},
        "requestReceivedTimestamp": "2026-01-31T12:00:00.000000Z",
        "annotations": {"authorization.k8s.io/decision": decision},
    }
    return json.dumps(told) + "\n"


@pytest.fixture
def log(site: GatewayFolder) -> Path:
    site.policy(role("team", READ, User="alice"))
    path = site.folder / "log"
    path.write_text(
        event(1, "alice", "get", "allow")
        + event(2, "alice", "delete", "allow")
        + event(3, "alice", "delete", "allow")
        + event(4, "bob", "get", "forbid")
        + event(5, "alice", "get", "forbid")
        + "half a line"
    )
    return path


@pytest.mark.usefixtures("log")
def test_the_past_is_decided_anew(capsys: Captured) -> None:
    """Idea 3."""
    code, out, err = run(capsys, "replay", "--config", "gateway.yaml", "log")
    assert code == 1
    assert out == (
        '+ User "alice" may now get pods in namespace "team": once, such as id-5\n'
        '- User "alice" may no longer delete pods in namespace "team": 2 times, such as id-2\n'
        "5 requests: gains: 1, losses: 1\n"
    )
    assert "1 line is no audit event and was skipped: log:6" in err


@pytest.mark.usefixtures("log")
def test_a_replay_is_told_in_json_and_may_be_a_gate_for_one_thing(capsys: Captured, site: GatewayFolder) -> None:
    code, out, _ = run(capsys, "replay", "-c", "gateway.yaml", "log", "--fail-on", "never", "-o", "json")
    told = json.loads(out)
    assert (code, told["asked"], told["unreadable"]) == (0, 5, 1)
    assert [(one["effect"], one["count"], one["user"], one["verb"]) for one in told["differences"]] == [
        ("gain", 1, "alice", "get"),
        ("loss", 2, "alice", "delete"),
    ]
    site.policy(role("team", "pods", User="alice"))
    assert run(capsys, "replay", "-c", "gateway.yaml", "log", "--fail-on", "loss")[0] == 0
    assert run(capsys, "replay", "-c", "gateway.yaml", "log")[0] == 1


def test_what_is_decided_as_before_passes(capsys: Captured, log: Path, site: GatewayFolder) -> None:
    log.write_text(event(1, "alice", "get", "allow"))
    assert run(capsys, "replay", "-c", "gateway.yaml", "log") == (0, "1 request: decided as before\n", "")


@pytest.mark.parametrize("text", ["", "nonsense\n", '{"kind": "Event"}\n'])
def test_a_gate_that_tried_nothing_is_not_open(capsys: Captured, log: Path, text: str) -> None:
    log.write_text(text)
    code, out, err = run(capsys, "replay", "-c", "gateway.yaml", "log", "--fail-on", "never")
    assert (code, out) == (1, "")
    assert "there are no requests to replay" in err


def test_what_cannot_be_decided_fails_whatever_else(capsys: Captured, log: Path, site: GatewayFolder) -> None:
    log.write_text(event(1, "alice", "get", "allow"))
    link = {"name": "far", "type": "subject_access_review", "server": "https://127.0.0.1:1", "tokenFile": "token"}
    site.write_config(authorization={"chain": [link], "timeout": "50ms"})
    code, _, err = run(capsys, "replay", "-c", "gateway.yaml", "log", "--fail-on", "never")
    assert code == 1
    assert "1 requests could not be decided" in err
