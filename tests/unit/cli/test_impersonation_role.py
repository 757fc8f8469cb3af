"""``ostiary impersonation-role``: the manifests for a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary.cli import main
from tests.support.gateway_site import GatewayFolder, role

Captured = pytest.CaptureFixture[str]
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    site = GatewayFolder(tmp_path)
    site.policy(role("team", READ, Group="dev"), role("", READ, Group="system:masters"))
    return site


def run(capsys: Captured, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    code = main(["impersonation-role", *arguments])
    shown = capsys.readouterr()
    return code, list(yaml.safe_load_all(shown.out)), shown.err


def test_the_role_is_made_from_the_policy(capsys: Captured) -> None:
    """Idea 9."""
    code, (cluster_role, binding, local, _), err = run(capsys)
    assert (code, err) == (0, "")
    (groups,) = [rule for rule in cluster_role["rules"] if rule.get("resources") == ["groups"]]
    assert groups["verbs"] == ["impersonate:user-info"]
    assert "dev" in groups["resourceNames"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "ostiary", "namespace": "ostiary"}]
    assert local["metadata"]["namespace"] == "team"
    assert local["rules"] == [{"verbs": ["impersonate-on:user-info:get"], "apiGroups": [""], "resources": ["pods"]}]


@pytest.mark.parametrize("options", [(), ("--legacy",)])
def test_masters_are_never_in_it(capsys: Captured, options: tuple[str, ...]) -> None:
    _, documents, _ = run(capsys, *options)
    assert "system:masters" not in str(documents)


def test_the_older_form_says_what_it_cannot_limit(capsys: Captured) -> None:
    _, documents, err = run(capsys, "--legacy", "--service-account", "auth/gateway")
    assert [document["kind"] for document in documents] == ["ClusterRole", "ClusterRoleBinding"]
    assert "can be any user" in err
    _, documents, err = run(capsys, "--legacy", "--user", "alice", "--subject-user", "gw", "--extra", "scopes")
    assert err == ""
    assert documents[0]["rules"][0]["resourceNames"] == ["alice"]
    assert documents[1]["subjects"][0]["kind"] == "User"


def test_a_policy_that_cannot_be_listed_is_told(capsys: Captured, site: GatewayFolder) -> None:
    (site.folder / "p.cedar").write_text('permit(principal in Group::"dev", action, resource);')
    site.write(authorization={"chain": [{"name": "iam", "type": "cedar", "paths": ["p.cedar"]}]})
    code, documents, err = run(capsys)
    assert code == 0
    assert '"iam" cannot tell what the policy allows' in err
    assert any(rule.get("resources") == ["*"] for rule in documents[0]["rules"])


def test_a_gateway_that_impersonates_nobody_needs_no_role(capsys: Captured, site: GatewayFolder) -> None:
    site.write(upstreams=[])
    code, documents, err = run(capsys)
    assert (code, documents) == (1, [])
    assert "impersonates nobody" in err


@pytest.mark.parametrize("options", [("--service-account", "gateway"), ("--name", "A_B")])
def test_names_that_no_object_can_have_are_refused(capsys: Captured, options: tuple[str, ...]) -> None:
    assert run(capsys, *options)[0] == 2
