"""``ostiary-gateway policy suggest``: what it prints, what it leaves out, and what it says of that."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary_gateway.cli import main
from tests.support.gateway import GatewayFolder, role

Captured = pytest.CaptureFixture[str]
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "delete"]}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    return GatewayFolder(tmp_path)


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["policy", "suggest", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def event(user: str = "alice", verb: str = "get", *, allowed: bool = True, **changes: Any) -> str:
    return json.dumps(
        {
            "kind": "Event",
            "auditID": "id",
            "stage": "ResponseComplete",
            "verb": verb,
            "requestURI": "/api/v1/namespaces/team/pods/web",
            "user": {"username": user, "groups": ["dev", "system:authenticated"]},
            "objectRef": {"resource": "pods", "namespace": "team", "name": "web", "apiVersion": "v1"},
            "responseStatus": {"code": 200 if allowed else 403},
            "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
            "annotations": {"authorization.k8s.io/decision": "allow" if allowed else "forbid"},
            **changes,
        }
    )


def write(*events: str) -> None:
    Path("audit.log").write_text("".join(f"{line}\n" for line in events))


def test_used_never_used_and_the_role_are_printed(capsys: Captured, site: GatewayFolder) -> None:
    site.policy(role("team", READ, User="alice"))
    write(event(), event(), event(verb="list"), event(verb="delete", allowed=False))
    code, out, err = run(capsys, "audit.log")
    assert code == 0
    assert 'User "alice": 3 requests used 2 rights' in out
    assert "team       pods      get 2, list 1  2026-01-01T00:00:00Z" in out
    assert "delete on pods  team" in out
    assert 'verbs: ["get", "list"]' in out
    assert 'User "alice": 1 request left out: refused' in err


def test_the_manifests_alone_can_be_piped_to_kubectl(capsys: Captured) -> None:
    write(event(), event("system:serviceaccount:shop:builder"))
    code, out, _ = run(capsys, "audit.log", "-o", "yaml", "--names")
    assert code == 0
    documents = list(yaml.safe_load_all(out))
    assert [(each["kind"], each["metadata"]["namespace"]) for each in documents] == [
        ("Role", "team"),
        ("RoleBinding", "team"),
    ] * 2
    subjects = [each["subjects"][0] for each in documents if "subjects" in each]
    assert [(each["kind"], each["name"]) for each in subjects] == [("ServiceAccount", "builder"), ("User", "alice")]
    assert all(each["rules"][0]["resourceNames"] == ["web"] for each in documents if "rules" in each)


def test_json_has_everything(capsys: Captured, site: GatewayFolder) -> None:
    site.policy(role("team", READ, Group="dev"))
    write(event(), "half a li")
    code, out, err = run(capsys, "audit.log", "-o", "json", "--group", "dev")
    told = json.loads(out)
    (subject,) = told["subjects"]
    assert (code, told["unreadable"], subject["subject"]["kind"]) == (0, 1, "Group")
    assert [(each["verb"], each["resource"], each["count"]) for each in subject["used"]] == [("get", "pods", 1)]
    assert subject["unused"][0]["rules"] == [
        {"verbs": ["delete", "list"], "groups": [""], "resources": ["pods"], "names": []}
    ]
    assert "1 line is no audit event and was skipped: audit.log:2" in err
    assert "half" not in err


def test_whose_and_when_can_be_chosen(capsys: Captured) -> None:
    old, new = (datetime.now(UTC) - timedelta(days=days) for days in (100, 1))
    write(
        event("old", requestReceivedTimestamp=old.isoformat()),
        event("new", requestReceivedTimestamp=new.isoformat()),
        event("system:serviceaccount:shop:builder"),
    )

    def users(*arguments: str) -> list[str]:
        out = run(capsys, "audit.log", "-o", "json", *arguments)[1]
        return sorted(each["subject"]["name"] for each in json.loads(out)["subjects"])

    assert users() == ["builder", "new", "old"]
    assert users("--since", "90d") == ["new"]
    assert users("--since", "48h") == ["new"]
    assert users("--since", old.isoformat(), "--user", "old") == ["old"]
    assert users("--serviceaccount", "shop:builder", "--user", "new") == ["builder", "new"]
    assert users("--namespace", "team") == ["builder", "new", "old"]
    assert run(capsys, "audit.log", "--namespace", "other")[0] == 1


def test_what_others_did_in_a_users_name_is_left_out_and_told(capsys: Captured) -> None:
    write(event("gateway", impersonatedUser={"username": "alice"}))
    code, out, err = run(capsys, "audit.log")
    assert (code, "kind: Role" in out) == (0, False)
    assert '1 request left out: made in its name by "gateway"' in err
    code, out, err = run(capsys, "audit.log", "--impersonated-by", "gateway")
    assert (code, "kind: Role" in out, "in its name" in err) == (0, True, False)


def test_refused_requests_become_rights_only_if_asked_for(capsys: Captured) -> None:
    write(event(allowed=False))
    assert "kind: Role" not in run(capsys, "audit.log")[1]
    assert "kind: Role" in run(capsys, "audit.log", "--include-denied")[1]


def test_names_from_the_log_cannot_steer_a_terminal_nor_add_lines(capsys: Captured) -> None:
    write(event("eve\x1b[31m\nUser: \u202eroot: *"))
    _, out, err = run(capsys, "audit.log")
    assert "\x1b" not in out + err
    assert "\u202e" not in out + err
    first, *_ = out.splitlines()
    assert first.startswith('User "eve')
    assert first.endswith("1 requests used 1 rights")
    manifests = list(yaml.safe_load_all(run(capsys, "audit.log", "-o", "yaml")[1]))
    assert manifests[1]["subjects"][0]["name"] == "eve\x1b[31m\nUser: \u202eroot: *"


def test_compressed_logs_and_several_are_read(capsys: Captured) -> None:
    write(event())
    Path("old.gz").write_bytes(gzip.compress(event("bob").encode()))
    out = run(capsys, "audit.log", "old.gz", "-o", "json")[1]
    assert [each["subject"]["name"] for each in json.loads(out)["subjects"]] == ["alice", "bob"]


def test_a_right_at_one_upstream_is_none_at_another(capsys: Captured) -> None:
    def at(name: str) -> dict[str, Any]:
        return {"annotations": {"authorization.k8s.io/decision": "allow", "audit.ostiary.dev/upstream": name}}

    write(event(**at("dev")), event(verb="delete", **at("prod")))
    code, _, err = run(capsys, "audit.log")
    assert (code, "--upstream dev (or prod)" in err) == (2, True)
    assert '["get"]' in run(capsys, "audit.log", "--upstream", "dev")[1]


def test_a_policy_of_manifests_may_stand_in_for_a_gateway(capsys: Captured, site: GatewayFolder) -> None:
    site.policy(role("team", READ, User="alice"), folder="other")
    write(event())
    assert "delete, list on pods" in run(capsys, "audit.log", "--policy", "other")[1]
    site.path.unlink()
    code, out, err = run(capsys, "audit.log")
    assert (code, "NEVER USED" in out) == (0, False)
    assert "it is not known what was never used" in err
    assert run(capsys, "audit.log", "--policy", "other", "--config", "x")[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [("--since", "soon"), ("--serviceaccount", "builder"), ("--serviceaccount", "A:b"), ("--name", "No Name")],
)
def test_a_mistake_on_the_command_line_is_told(capsys: Captured, arguments: tuple[str, ...]) -> None:
    write(event())
    code, out, err = run(capsys, "audit.log", *arguments)
    assert (code, out) == (2, "")
    assert arguments[0] in err


def test_a_log_without_requests_gives_no_role(capsys: Captured) -> None:
    """An empty role would look like an answer."""
    write("{}", event(annotations={}))
    code, out, err = run(capsys, "audit.log")
    assert (code, out) == (1, "")
    assert "no requests to suggest a role from" in err


def test_names_that_somebody_impersonates_in_vain_do_not_fill_the_page(capsys: Captured) -> None:
    names = [event("mallory", allowed=False, impersonatedUser={"username": f"x{number}"}) for number in range(9)]
    write(event(), *names)
    _, out, err = run(capsys, "audit.log")
    assert ('"alice"' in out, '"x1"' in out, '"x8"' in out + err) == (True, True, False)
    assert "4 more are not shown: none of their requests counts (--user tells why)" in err
    _, out, err = run(capsys, "audit.log", "--user", "x8")
    assert 'User "x8": 1 request left out: made in its name by "mallory"' in err


def test_json_does_not_steer_a_terminal(capsys: Captured) -> None:
    name = "a\x9b2J\u202e\U000e0001\x7f\u00e9"
    write(event(name))
    _, out, _ = run(capsys, "audit.log", "-o", "json")
    assert out.replace("\n", "").isprintable()
    assert json.loads(out)["subjects"][0]["subject"]["name"] == name
    assert "\u00e9" in out


def test_standard_input_may_be_closed(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    code, _, err = run(capsys, "-")
    assert (code, "standard input" in err, "it is closed" in err) == (1, True, True)


def test_an_upstream_that_is_not_named_is_one_of_several(capsys: Captured) -> None:
    """The gateway had one upstream, and then a second: what was used at one must not become a right at the other."""
    decided = {"authorization.k8s.io/decision": "allow", "audit.ostiary.dev/upstream": "b"}
    Path("gateway.yaml").unlink()
    write(event(), event(annotations=decided))
    code, out, err = run(capsys, "audit.log")
    assert (code, out) == (2, "")
    assert "choose one, as in: --upstream b\n" in err
    assert run(capsys, "audit.log", "--upstream", "b")[0] == 0


@pytest.mark.parametrize("group", ["system:masters", "system:nodes", "system:unauthenticated"])
def test_a_role_that_says_too_little_or_too_much_is_remarked_on(capsys: Captured, group: str) -> None:
    write(event("x").replace('"dev"', f'"{group}"'))
    _, _, err = run(capsys, "audit.log")
    assert err.count('User "x": ') == 1


def test_what_is_below_the_prefix_of_an_upstream_is_what_the_role_is_about(
    capsys: Captured, site: GatewayFolder
) -> None:
    (upstream,) = site.config()["upstreams"]
    site.write_config(upstreams=[{**upstream, "prefix": "/dev", "stripPrefix": True}])
    paths = [event(requestURI=f"/dev{path}", objectRef=None) for path in ("/apis", "/metrics")]
    write(*paths)
    _, out, _ = run(capsys, "audit.log", "-o", "yaml")
    assert yaml.safe_load(out.partition("---")[0])["rules"] == [{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]
