"""Lines of policy and of group lists that can match nobody: who could sign in is known from the whole configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from ostiary_gateway.authorization.who_can import NameSource, PossibleSubjects
from ostiary_gateway.cli import main
from ostiary_gateway.config import load
from ostiary_gateway.interfaces.authorization import Level
from ostiary_gateway.policy.source import find_unmatched
from tests.support.gateway import GatewayFolder, role

Captured = pytest.CaptureFixture[str]
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
STAFF = {"name": "staff", "type": "htpasswd", "path": "users"}
PARTNERS = {"name": "partners", "type": "oidc", "issuer": "https://sso.example.test"}
PARTNERS |= {"clientID": "gateway", "clientSecretFile": "token", "prefix": "partners:"}
TEAMS = {"name": "teams", "type": "file", "path": "groups.yaml"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    site = GatewayFolder(tmp_path)
    (tmp_path / "users").write_text(f"alice:{bcrypt.hashpw(b'open-sesame', bcrypt.gensalt(4)).decode()}\n")
    (tmp_path / "groups.yaml").write_text("dev: [alice]\nempty: []\n")
    site.policy(role("team", READ, User="alice"), role("team", READ, Group="dev"))
    return site


def nobody(site: GatewayFolder, **sections: Any) -> dict[str, str]:
    """What is told, by the name that matches nobody: the hint."""
    site.write_config(**sections)
    found = [one for one in find_unmatched(load(site.path)) if one.level is Level.WARNING]
    assert all(one.problem.place.file and one.problem.place.line for one in found)
    return {one.problem.message.split('"')[1]: one.problem.hint or "" for one in found}


def test_one_identity_provider_and_its_groups_match(site: GatewayFolder) -> None:
    assert nobody(site, identity=[STAFF], groups=[TEAMS]) == {}


def test_a_prefix_makes_the_old_names_match_nobody(site: GatewayFolder) -> None:
    """Both the line of the policy and the line of the groups file are told, and what was meant."""
    told = nobody(site, identity=[{**STAFF, "prefix": "staff:"}, PARTNERS], groups=[TEAMS])
    assert told == {"alice": 'did you mean "staff:alice"?'}
    assert len([one for one in find_unmatched(load(site.path)) if one.rule == "matches-nobody"]) == 2


def test_beside_a_second_identity_provider_the_names_of_the_first_still_match(site: GatewayFolder) -> None:
    assert nobody(site, identity=[{**STAFF, "prefix": ""}, PARTNERS], groups=[TEAMS]) == {}


def test_a_name_with_a_prefix_is_that_of_its_provider_alone(site: GatewayFolder) -> None:
    """Users of the provider without one who have such a name are refused when they sign in."""
    staff, partners = {**PARTNERS, "name": "staff", "prefix": ""}, {**STAFF, "name": "partners", "prefix": "partners:"}
    site.policy(role("team", READ, User="partners:bob"), role("team", READ, User="bob"))
    assert nobody(site, identity=[staff, partners]) == {"partners:bob": ""}
    (finding,) = find_unmatched(load(site.path))
    assert '"partners" does not know it' in finding.problem.message


def test_names_with_the_prefix_match(site: GatewayFolder) -> None:
    (site.folder / "groups.yaml").write_text("dev: ['staff:alice', 'partners:carol']\n")
    site.policy(role("team", READ, User="staff:alice"), role("team", READ, User="partners:bob"))
    both = [{**STAFF, "prefix": "staff:"}, PARTNERS]
    assert nobody(site, identity=both, groups=[TEAMS]) == {}
    site.policy(role("team", READ, User="staff:bob"))
    assert list(nobody(site, identity=both, groups=[TEAMS])) == ["staff:bob"]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], {"dev": ""}),
        ([TEAMS], {}),
        ([{**TEAMS, "prefix": "corp:"}], {"dev": 'did you mean "corp:dev"?'}),
        ([{**TEAMS, "prefix": "corp:"}, {"name": "said", "type": "claims"}], {}),
    ],
)
def test_a_group_that_no_provider_gives_matches_nobody(
    site: GatewayFolder, groups: list[dict[str, Any]], expected: dict[str, str]
) -> None:
    assert nobody(site, identity=[STAFF], groups=groups) == expected


def test_a_group_without_members_matches_nobody(site: GatewayFolder) -> None:
    site.policy(role("team", READ, Group="empty"))
    assert list(nobody(site, identity=[STAFF], groups=[TEAMS])) == ["empty"]


def test_names_in_a_cedar_policy_are_checked_too(site: GatewayFolder) -> None:
    (site.folder / "p.cedar").write_text('permit(principal == User::"bob", action, resource);\n')
    chain = [{"name": "policy", "type": "cedar", "paths": ["p.cedar"]}]
    assert list(nobody(site, identity=[STAFF], authorization={"chain": chain})) == ["bob"]


def test_names_of_the_system_are_told_softly(site: GatewayFolder) -> None:
    """A cluster's own policy is full of them."""
    site.policy(role("", READ, User="system:kube-scheduler"), role("", READ, Group="system:authenticated"))
    site.write_config(identity=[STAFF])
    (finding,) = find_unmatched(load(site.path))
    assert (finding.level, "system:kube-scheduler" in finding.problem.message) == (Level.INFO, True)


def test_a_user_that_depends_on_who_runs_the_gateway_can_be_anybody(site: GatewayFolder) -> None:
    assert nobody(site, identity=[{"name": "me", "type": "single_user"}], groups=[TEAMS]) == {}
    known = [{"name": "me", "type": "single_user", "username": "bob"}]
    assert list(nobody(site, identity=known, groups=[TEAMS])) == ["alice"]


def test_check_and_lint_tell_it(site: GatewayFolder, capsys: Captured) -> None:
    site.write_config(identity=[{**STAFF, "prefix": "staff:"}, PARTNERS], groups=[TEAMS])
    assert main(["serve", "--check"]) == 0
    err = capsys.readouterr().err
    assert "policy.yaml:" in err
    assert "groups.yaml:1" in err
    assert 'did you mean "staff:alice"?' in err
    for options in ((), ("--config", "gateway.yaml")):
        assert main(["policy", "lint", "policy", *options, "-o", "json"]) == 0
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        assert (finding["rule"], finding["level"]) == ("matches-nobody", "warning")
        assert 'names of "staff", "partners" begin with "staff:", "partners:"' in finding["message"]


def test_a_configuration_that_cannot_be_used_is_told_and_asked_for_is_an_error(
    site: GatewayFolder, capsys: Captured
) -> None:
    site.path.write_text("apiVersion: ostiary.dev/v1\n")
    assert main(["policy", "lint", "policy"]) == 0
    assert "it is not known who can sign in" in capsys.readouterr().err
    assert main(["policy", "lint", "policy", "--config", "gateway.yaml"]) == 1


def test_where_a_cluster_asks_about_its_own_people_every_name_is_possible() -> None:
    possible = PossibleSubjects(users=(NameSource("staff", names=frozenset({"alice"})),), anybody=True)
    from ostiary.model import Place
    from ostiary_gateway.interfaces.authorization import Subject
    from ostiary_gateway.policy.source import unmatched_subjects

    assert list(unmatched_subjects([(Subject("User", "bob"), Place())], possible)) == []
    assert not possible.can_be_user("bob")
