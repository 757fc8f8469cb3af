"""``ostiary-gateway can-i`` and ``ostiary-gateway who-can``: the policy of a configuration, asked here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.cli import main
from tests.support.gateway import GatewayFolder, role

Captured = pytest.CaptureFixture[str]
READ = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}
SCALE = {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["update"], "resourceNames": ["web"]}
METRICS = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    site = GatewayFolder(tmp_path)
    site.policy(
        role("team", READ, SCALE, User="alice"), role("", METRICS, Group="monitoring"), role("", READ, User="me")
    )
    return site


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("get pods -n team --user alice", True),
        ("get pods/log web --namespace team --user alice", True),
        ("get pods --user alice", False),
        ("delete pods web -n team --user alice", False),
        ("get pods -n team --user bob", False),
        ("update deployments.apps/scale web -n team --user alice", True),
        ("update deployments/scale web --api-group apps -n team --user alice", True),
        ("update deployments.apps/scale other -n team --user alice", False),
        ("get --path /metrics --group monitoring", True),
        ("get --path /metrics --user alice", False),
        ("GET --path /version --user alice", True),
        ("get --path /version --group unheard-of", True),
    ],
)
def test_the_exit_code_is_the_answer(capsys: Captured, line: str, allowed: bool) -> None:
    assert run(capsys, "can-i", *line.split()) == (0 if allowed else 1, "yes\n" if allowed else "no\n", "")


@pytest.mark.parametrize(
    ("line", "can", "allowed"),
    [
        ("get pods -n team --user alice", ["get pods -n team"], True),
        ("get pods -n team --user alice", ["list pods -n team", "get pods -n team"], True),
        ("get pods -n team --user alice", ["list pods -n team"], False),
        ("get pods -n team --user bob", ["get pods -n team"], False),
    ],
)
def test_with_a_token_that_may_do_less_both_must_allow(
    capsys: Captured, line: str, can: list[str], allowed: bool
) -> None:
    words = [word for rule in can for word in ("--can", rule)]
    assert run(capsys, "can-i", *line.split(), *words)[:2] == (0 if allowed else 1, "yes\n" if allowed else "no\n")


def test_what_such_a_token_is_not_for_is_explained_beside_what_the_policy_says(capsys: Captured) -> None:
    words = ["can-i", "get", "pods", "-n", "team", "--user", "alice", "--can", "list pods -n team", "--explain"]
    code, out, _ = run(capsys, *words, "-o", "json")
    answer = json.loads(out)
    assert (code, answer["decision"]["reason"]) == (1, "beyond this token's scope: list pods -n team")
    scope, policy = answer["explanation"]["steps"]
    assert (scope["provider"], scope["closest"], scope["failed"]) == ("token scope", "list pods -n team", "verb")
    assert policy["verdict"] == "allow"


def test_without_a_name_it_is_you_who_asks(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "me")
    assert run(capsys, "can-i", "list", "pods")[0] == 0
    monkeypatch.setenv("LOGNAME", "you")
    assert run(capsys, "can-i", "list", "pods")[0] == 1


def test_a_no_is_explained(capsys: Captured) -> None:
    """Idea 2: the closest rule, the one condition that failed, the smallest rule that would allow it."""
    code, out, _ = run(capsys, *["can-i", "delete", "pods", "web", "-n", "team", "--user", "alice", "--explain"])
    assert code == 1
    assert out.startswith('no\n  asked    User "alice": delete pods "web" in namespace "team"\n  decision refused\n')
    assert "closest  RoleBinding" in out
    assert 'failed   verb: the rule allows "get", "list" and not "delete"' in out
    assert 'resourceNames: ["web"]' in out


def test_what_is_explained_as_the_remedy_is_one(capsys: Captured, site: GatewayFolder) -> None:
    line = ["can-i", "delete", "pods", "web", "-n", "team", "--user", "alice"]
    told = json.loads(run(capsys, *line, "--explain", "-o", "json")[1])
    (step,) = told["explanation"]["steps"]
    (site.folder / "policy" / "more.yaml").write_text(step["remedy"])
    assert run(capsys, *line)[0] == 0


def test_a_yes_is_explained_by_its_rule(capsys: Captured) -> None:
    _, out, _ = run(capsys, *["can-i", "get", "pods", "-n", "team", "--user", "alice", "--group", "dev", "--explain"])
    assert out.startswith('yes\n  asked    User "alice" (groups: dev): get pods in namespace "team"\n')
    assert "RBAC: allowed by RoleBinding" in out
    assert "smallest" not in out


def test_json_tells_the_question_and_the_decision(capsys: Captured) -> None:
    code, out, _ = run(capsys, *["can-i", "get", "pods", "-n", "other", "--user", "alice", "--output", "json"])
    told = json.loads(out)
    assert (code, told["allowed"], "explanation" in told) == (1, False, False)
    assert told["decision"] == {"verdict": "no opinion", "reason": "", "hidden": False}
    assert told["attributes"]["namespace"] == "other"


@pytest.mark.parametrize(
    "line",
    [
        "can-i get",
        "can-i get pods --path /x",
        "can-i get --path metrics",
        "can-i get --path /x -n team",
        "can-i get deployments.apps --api-group batch",
        "can-i get /log",
        "who-can get",
    ],
)
def test_a_question_that_cannot_be_understood_is_not_guessed(capsys: Captured, line: str) -> None:
    code, out, err = run(capsys, *line.split())
    assert (code, out) == (2, "")
    assert err.endswith("  code   usage\n")


def test_a_missing_configuration_is_told_by_its_name(capsys: Captured) -> None:
    code, _, err = run(capsys, "can-i", "get", "pods", "-c", "elsewhere.yaml")
    assert code == 1
    assert "elsewhere.yaml" in err
    assert "code   config-unreadable" in err


def test_a_provider_that_cannot_be_asked_is_no_no(capsys: Captured, site: GatewayFolder) -> None:
    link = {"name": "far", "type": "subject_access_review", "server": "https://127.0.0.1:1", "tokenFile": "token"}
    site.write_config(authorization={"chain": [link], "timeout": "50ms"})
    for more in ((), ("--explain",)):
        code, out, err = run(capsys, "can-i", "get", "pods", *more)
        assert (code, out) == (1, "")
        assert "code   provider-failed" in err


def test_who_can_tells_subjects_and_why(capsys: Captured) -> None:
    code, out, _ = run(capsys, "who-can", "get", "pods", "-n", "team")
    header, *lines = out.splitlines()
    assert code == 0
    assert header.split() == ["KIND", "NAME", "NAMESPACE", "VIA"]
    assert [line.split()[:2] for line in lines if "system:masters" not in line] == [["User", "me"], ["User", "alice"]]
    assert all(line.split()[2:4] == ["-", "cluster:"] for line in lines)


def test_who_can_in_json_is_what_the_gateway_itself_answers(capsys: Captured) -> None:
    told: dict[str, Any] = json.loads(run(capsys, "who-can", "get", "--path", "/metrics", "-o", "json")[1])
    assert told["kind"] == "SubjectSearch"
    assert "monitoring" in [one["name"] for one in told["subjects"]]
    assert told["unknown"] == []


def test_nobody_is_an_answer_and_a_provider_that_cannot_tell_is_named(capsys: Captured, site: GatewayFolder) -> None:
    link = {"name": "far", "type": "subject_access_review", "server": "https://127.0.0.1:1", "tokenFile": "token"}
    site.write_config(authorization={"chain": [link]})
    code, out, err = run(capsys, "who-can", "get", "pods")
    assert (code, out) == (1, "nobody\n")
    assert 'the provider "far" cannot list whom it allows' in err


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("can-i get pod -n team --user alice", 'did you mean "pods"?'),
        ("can-i get Pods -n team --user alice", 'did you mean "pods"?'),
        ("can-i get po -n team --user alice", 'did you mean "pods"?'),
        ("who-can get deployment.apps -n team", 'did you mean "deployments"?'),
        ("can-i get widget -n team --user alice", '"widget" does not look like it'),
        ("can-i get widgets -n team --user alice", ""),
        ("can-i get secrets -n team --user alice", ""),
        ("can-i get --path /pod --user alice", ""),
    ],
)
def test_a_resource_that_is_not_in_the_plural_is_told(capsys: Captured, line: str, note: str) -> None:
    main(line.split())
    err = capsys.readouterr().err
    assert note in err
    assert bool(note) == ("plural" in err)


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("can-i gett pods --user alice", 'no request has the verb "gett": did you mean "get"?'),
        ("can-i Get pods --user alice", 'did you mean "get"?'),
        ("can-i read pods --user alice", 'no request has the verb "read"'),
        ("can-i update --path /x --user alice", 'no request has the verb "update"'),
        ("who-can lst pods", 'did you mean "list"?'),
        ("can-i impersonate users --user alice", ""),
        ("can-i impersonate-on:user-info:get pods --user alice", ""),
        ("can-i get deployments --user alice", 'in the core API group: did you mean "deployments.apps"?'),
        ("can-i get deploy --user alice", 'did you mean "deployments.apps"?'),
        ("can-i get roles --user alice", 'did you mean "roles.rbac.authorization.k8s.io"?'),
        ("can-i get roles --api-group example.com --user alice", ""),
        ("can-i get pods/web --user alice", "as in pods web"),
        ("can-i get deployments.apps/scale --user alice", ""),
        ("can-i get widgets.example.com/anything --user alice", ""),
        ("can-i get pods -n team --user alice", ""),
    ],
)
def test_a_question_that_nobody_can_be_allowed_is_told(capsys: Captured, line: str, note: str) -> None:
    err = run(capsys, *line.split())[2]
    assert note in err
    assert bool(note) == bool(err)


def test_a_path_in_place_of_a_resource_is_told_with_its_option(capsys: Captured) -> None:
    assert "--path /metrics" in run(capsys, "can-i", "get", "/metrics")[2]


@pytest.mark.parametrize(
    ("line", "notes"),
    [
        ("--user alice", ['has the name "alice": did you mean "staff:alice"?']),
        ("--user staff:alice --group dev", ['is in the group "dev": did you mean "team:dev"?']),
        ("--user staff:alice --group team:dev", []),
        ("--user bob --group ops", []),
    ],
)
def test_a_name_without_the_prefix_of_its_provider_is_told(
    capsys: Captured, site: GatewayFolder, line: str, notes: list[str]
) -> None:
    """A policy may allow alice something, and yet nobody here has that name."""
    (site.folder / "groups.yaml").write_text("dev: [alice]\n")
    site.write_config(
        identity=[{"name": "me", "type": "single_user", "username": "alice", "prefix": "staff:"}],
        groups=[{"name": "teams", "type": "file", "path": "groups.yaml", "prefix": "team:"}],
    )
    err = run(capsys, "can-i", "get", "pods", "-n", "team", *line.split())[2]
    assert err == "".join(f"ostiary: nobody who signs in here {note}\n" for note in notes)


@pytest.mark.parametrize("line", ["restart orders 7 -n north", "get order", "read --path /x", "lst pods"])
def test_other_apis_have_words_of_their_own(capsys: Captured, site: GatewayFolder, line: str) -> None:
    site.write_config(
        identity=[{"name": "me", "type": "single_user", "username": "alice"}],
        authorization={"chain": [{"name": "policy", "type": "rbac", "paths": ["policy"]}]},
        upstreams=[{"name": "shop", "server": "http://127.0.0.1:1", "attributes": "http"}],
    )
    assert run(capsys, "can-i", *line.split(), "--user", "alice") == (1, "no\n", "")


class TestSeveralUpstreams:
    """A policy may be for one of them only."""

    @pytest.fixture(autouse=True)
    def two(self, site: GatewayFolder) -> None:
        site.policy(role("team", READ, User="alice"), folder="dev")
        site.policy(role("team", READ, User="bob"), folder="prod")
        cluster = {"server": "https://127.0.0.1:1", "identity": "impersonation", "tokenFile": "token"}
        site.write_config(
            identity=[{"name": "me", "type": "single_user", "username": "alice"}],
            authorization={
                "chain": [
                    {"name": name, "type": "rbac", "paths": [name], "upstreams": [name]} for name in ("dev", "prod")
                ]
            },
            upstreams=[{**cluster, "name": name, "hosts": [f"{name}.example"]} for name in ("dev", "prod")],
        )

    def test_the_answer_is_about_one_of_them(self, capsys: Captured) -> None:
        asked = ["can-i", "get", "pods", "-n", "team", "--user", "alice"]
        assert main([*asked, "--upstream", "dev"]) == 0
        assert main([*asked, "--upstream", "prod", "--explain"]) == 1
        assert "its policy applies to other upstreams" in capsys.readouterr().out
        assert main(asked) == 2
        assert "the answer depends on the upstream" in capsys.readouterr().err
        assert main([*asked, "--upstream", "stage"]) == 2
        assert 'unknown upstream "stage"' in capsys.readouterr().err

    def test_who_can_is_about_one_of_them(self, capsys: Captured) -> None:
        assert main(["who-can", "get", "pods", "-n", "team", "--upstream", "prod"]) == 0
        shown = capsys.readouterr().out
        assert "bob" in shown
        assert "alice" not in shown

    def test_the_role_for_a_cluster_is_made_of_its_policy(self, capsys: Captured) -> None:
        assert main(["impersonation-role", "--upstream", "dev"]) == 0
        assert "team" in capsys.readouterr().out
        assert main(["impersonation-role", "--upstream", "prod"]) == 0
        # Nobody whom the gateway knows has a right there.
        assert "team" not in capsys.readouterr().out
        assert main(["impersonation-role"]) == 2
