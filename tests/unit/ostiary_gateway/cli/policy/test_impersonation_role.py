"""``ostiary-gateway impersonation-role``: the manifests for a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from ostiary_gateway.cli import main
from tests.support.gateway import GatewayFolder, role

Captured = pytest.CaptureFixture[str]
ALICE = [{"name": "me", "type": "single_user", "username": "alice"}]
OIDC = {"issuer": "https://sso.example.test", "clientID": "gateway", "clientSecretFile": "token"}
HASH = bcrypt.hashpw(b"open-sesame", bcrypt.gensalt(4)).decode()
TEAMS = [{"name": "teams", "type": "file", "path": "groups.yaml"}]
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    site = GatewayFolder(tmp_path)
    site.policy(role("team", READ, Group="dev"), role("", READ, Group="system:masters"))
    (tmp_path / "groups.yaml").write_text("dev: [alice]\n")
    site.write_config(identity=ALICE, groups=TEAMS)
    return site


def run(capsys: Captured, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    code = main(["impersonation-role", *arguments])
    shown = capsys.readouterr()
    return code, list(yaml.safe_load_all(shown.out)), shown.err


def test_the_role_is_made_from_the_policy(capsys: Captured) -> None:
    """Idea 9."""
    code, (cluster_role, binding, local, _), err = run(capsys)
    assert (code, err) == (0, "")
    (users,) = [rule for rule in cluster_role["rules"] if rule.get("resources") == ["users"]]
    assert users["resourceNames"] == ["alice"]
    (groups,) = [rule for rule in cluster_role["rules"] if rule.get("resources") == ["groups"]]
    assert groups["verbs"] == ["impersonate:user-info"]
    assert groups["resourceNames"] == ["dev"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "ostiary", "namespace": "ostiary"}]
    assert local["metadata"]["namespace"] == "team"
    assert local["rules"] == [{"verbs": ["impersonate-on:user-info:get"], "apiGroups": [""], "resources": ["pods"]}]


@pytest.mark.parametrize("options", [(), ("--legacy",)])
def test_masters_are_never_in_it(capsys: Captured, options: tuple[str, ...]) -> None:
    _, documents, _ = run(capsys, *options)
    assert "system:masters" not in str(documents)


def test_the_older_form_says_what_it_cannot_limit(capsys: Captured) -> None:
    _, documents, err = run(capsys, "--legacy", "--any-user", "--service-account", "auth/gateway")
    assert [document["kind"] for document in documents] == ["ClusterRole", "ClusterRoleBinding"]
    assert "can be any user" in err
    _, documents, err = run(capsys, "--legacy", "--user", "bob", "--subject-user", "gw", "--extra", "scopes")
    assert 'any value of the extra field "scopes"' in err
    assert documents[0]["rules"][0]["resourceNames"] == ["bob"]
    assert documents[1]["subjects"][0]["kind"] == "User"


def test_a_policy_that_cannot_be_listed_is_told(capsys: Captured, site: GatewayFolder) -> None:
    (site.folder / "p.cedar").write_text('permit(principal in Group::"dev", action, resource);')
    chain = [{"name": "iam", "type": "cedar", "paths": ["p.cedar"]}]
    site.write_config(identity=ALICE, groups=TEAMS, authorization={"chain": chain})
    code, documents, err = run(capsys)
    assert code == 0
    assert '"iam" cannot tell what the policy allows' in err
    assert any(rule.get("resources") == ["*"] for rule in documents[0]["rules"])


def test_a_gateway_that_impersonates_nobody_needs_no_role(capsys: Captured, site: GatewayFolder) -> None:
    site.write_config(upstreams=[])
    code, documents, err = run(capsys)
    assert (code, documents) == (1, [])
    assert "does not use impersonation" in err


@pytest.mark.parametrize("options", [("--service-account", "gateway"), ("--name", "A_B")])
def test_names_that_no_object_can_have_are_refused(capsys: Captured, options: tuple[str, ...]) -> None:
    assert run(capsys, *options)[0] == 2


# --- a policy that came from a cluster ---

ADMIN = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
IN_EVERY_CLUSTER = (
    role("", ADMIN, User="system:kube-controller-manager"),
    role("", ADMIN, User="system:kube-scheduler"),
    role("", ADMIN, User="system:node:n1"),
    role("", ADMIN, Group="system:masters"),
    role("", ADMIN, Group="system:nodes"),
    role("", ADMIN, Group="system:serviceaccounts"),
    role("", ADMIN, User="system:serviceaccount:kube-system:generic-garbage-collector"),
)


@pytest.mark.parametrize("options", [(), ("--legacy",), ("--user", "bob")])
@pytest.mark.parametrize("kind", ["htpasswd", "single_user", "oidc"])
def test_it_holds_nobody_of_the_system_whatever_the_policy_and_the_providers(
    capsys: Captured, site: GatewayFolder, kind: str, options: tuple[str, ...]
) -> None:
    (site.folder / "users").write_text(f"alice:{HASH}\n")
    settings: dict[str, Any] = {
        "htpasswd": {"path": "users"},
        "single_user": {"username": "alice"},
        "oidc": OIDC,
    }
    site.policy(*IN_EVERY_CLUSTER, role("team", READ, User="alice"), role("team", READ, Group="dev"))
    site.write_config(identity=[{"name": "staff", "type": kind, **settings[kind]}], groups=TEAMS)
    code, documents, _ = run(capsys, *options)
    assert code == 0
    assert "system:" not in str(documents)
    assert all(rule.get("resourceNames") for document in documents for rule in _whom(document))
    assert "secrets" not in str(documents)
    assert "'*'" not in str(documents)


def _whom(document: dict[str, Any]) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = document.get("rules", [])
    return [rule for rule in rules if not rule["verbs"][0].startswith("impersonate-on:")]


def test_with_prefixes_only_names_that_have_one_are_in_it(capsys: Captured, site: GatewayFolder) -> None:
    """With a prefix, alice is "staff:alice": the policy's "alice" is nobody then."""
    (site.folder / "users").write_text(f"alice:{HASH}\n")
    site.policy(role("team", READ, User="alice"), role("other", READ, User="staff:alice"))
    second = {"name": "partners", "type": "single_user", "username": "alice", "prefix": "partners:"}
    site.write_config(identity=[{"name": "staff", "type": "htpasswd", "path": "users", "prefix": "staff:"}, second])
    _, documents, _ = run(capsys)
    assert _whom(documents[0])[0]["resourceNames"] == ["partners:alice", "staff:alice"]
    assert [one["metadata"].get("namespace") for one in documents if one["kind"] == "Role"] == ["other"]


def test_users_that_cannot_be_listed_must_be_named(capsys: Captured, site: GatewayFolder) -> None:
    site.policy(role("team", READ, Group="dev"))
    site.write_config(identity=[{"name": "sso", "type": "oidc", **OIDC}], groups=TEAMS)
    code, documents, err = run(capsys)
    assert (code, documents) == (1, [])
    assert '"sso" cannot list its users' in err
    assert "--any-user" in err
    site.policy(role("team", READ, Group="dev"), role("team", READ, User="bob"))
    code, documents, err = run(capsys)
    assert _whom(documents[0])[0]["resourceNames"] == ["bob"]
    assert 'only those are in it that the policy names: "bob"' in err
    _, documents, err = run(capsys, "--any-user")
    assert "resourceNames" not in _whom(documents[0])[0]
    assert "can be any user" in err


@pytest.mark.parametrize(
    "options",
    [
        ("--user", "system:kube-controller-manager"),
        ("--user", "system:serviceaccount:shop:builder"),
        ("--user", ""),
        ("--as-service-account", "builder"),
        ("--as-service-account", "*/builder"),
        ("--as-node", "*"),
    ],
)
def test_names_that_would_open_more_are_refused(capsys: Captured, options: tuple[str, ...]) -> None:
    assert run(capsys, *options)[0] == 2


def test_service_accounts_and_nodes_are_in_it_when_asked_for(capsys: Captured, site: GatewayFolder) -> None:
    _, documents, err = run(capsys, "--as-service-account", "shop/builder", "--as-node", "n1")
    rules = [rule for document in documents for rule in _whom(document)]
    assert {
        "verbs": ["impersonate:serviceaccount"],
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["serviceaccounts"],
        "resourceNames": ["builder"],
    } in rules
    assert "impersonate:arbitrary-node" in str(rules)
    assert err == ""
