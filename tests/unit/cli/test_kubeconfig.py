"""``ostiary kubeconfig``: what it prints is what kubectl takes, and merging loses nothing."""

from __future__ import annotations

import stat
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ostiary.cli import main
from ostiary.cli.kubeconfig import merged
from ostiary.client.kubeconfig import choose, load

Captured = pytest.CaptureFixture[str]
SERVER = "https://gateway.example"


def test_the_printed_context_runs_get_token(capsys: Captured, tmp_path: Path, ca: trustme.CA) -> None:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    words = ["--name", "staging", "--prefix", "/staging/", "--namespace", "team", "--ca", str(tmp_path / "ca.pem")]
    assert main(["kubeconfig", "--server", f"{SERVER}/", "--account", "admin", *words]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "config").write_text(printed)
    found = choose(tmp_path / "config")
    assert (found.context_name, found.namespace, found.cluster.server) == ("staging", "team", f"{SERVER}/staging")
    assert found.cluster.certificate_authority_data == ca.cert_pem.bytes()
    plugin = found.user.exec
    assert plugin is not None
    assert plugin.command == "ostiary"
    assert plugin.args == ("get-token", "--server", SERVER, "--account", "admin")
    assert (plugin.api_version, plugin.interactive_mode, plugin.provide_cluster_info) == (
        "client.authentication.k8s.io/v1",
        "IfAvailable",
        True,
    )
    assert "pip install ostiary" in plugin.install_hint


def test_a_new_file_is_private_and_an_old_one_is_not_overwritten(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "config"
    assert main(["kubeconfig", "--server", SERVER, "--write", str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load(path).current_context == "gateway.example"
    before = path.read_text()
    assert main(["kubeconfig", "--server", SERVER, "--write", str(path)]) == 1
    assert path.read_text() == before
    assert "--merge" in capsys.readouterr().err


def test_merging_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "real"
    path.write_text(
        "current-context: other\n"
        "extra: {deep: [1, 'yes']}\n"
        "clusters: [{name: other, cluster: {server: https://other.example}}]\n"
        "users: [{name: other, user: {token: abc}}]\n"
        "contexts: [{name: other, context: {cluster: other, user: other}}]\n"
    )
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    monkeypatch.setenv("KUBECONFIG", f"{link}:{tmp_path}/second")
    for _ in range(2):
        assert main(["kubeconfig", "--server", SERVER, "--merge"]) == 0
    found = yaml.safe_load(path.read_text())
    assert found["extra"] == {"deep": [1, "yes"]}
    assert found["current-context"] == "other"
    assert [each["name"] for each in found["users"]] == ["other", "gateway.example"]
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "real"]


def test_merging_into_nothing_makes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "new" / "config"))
    assert main(["kubeconfig", "--server", SERVER, "--merge"]) == 0
    assert load(tmp_path / "new" / "config").current_context == "gateway.example"


def test_a_kubeconfig_that_somebody_is_changing_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    path = tmp_path / "config"
    path.with_name("config.lock").touch()
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert main(["kubeconfig", "--server", SERVER, "--merge"]) == 1
    assert not path.exists()
    assert "config.lock" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "users: 3", "{", "a: [b"])
def test_a_file_that_is_no_kubeconfig_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert main(["kubeconfig", "--server", SERVER, "--merge"]) == 1
    assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["config"]


def test_an_entry_of_the_same_name_is_replaced_where_it_stands() -> None:
    def config(server: str, *names: str) -> dict[str, Any]:
        return {
            "current-context": names[0],
            **{
                section: [{"name": name, "at": server} for name in names]
                for section in ("clusters", "users", "contexts")
            },
        }

    found = merged(config("old", "a", "b", "c"), config("new", "b"))
    assert [(each["name"], each["at"]) for each in found["users"]] == [("a", "old"), ("b", "new"), ("c", "old")]


@pytest.mark.parametrize(
    "words", [["--server", "http://gateway.example"], ["--server", SERVER, "--prefix", "staging"], ["--account", ""]]
)
def test_what_cannot_be_meant_is_refused(words: list[str], capsys: Captured) -> None:
    assert main(["kubeconfig", *words]) in (1, 2)
    assert capsys.readouterr().out == ""


def test_the_authority_of_the_session_comes_along(capsys: Captured, tmp_path: Path, ca: trustme.CA) -> None:
    from datetime import UTC, datetime

    from ostiary.cli.signin.sessions import Account, Grant, Sessions
    from ostiary.model import Secret

    end = datetime(2999, 1, 1, tzinfo=UTC)
    grant = Grant(Secret("t"), end, Secret("r"), "s1", end, "ann")
    Sessions(Account(SERVER)).save(grant, store="file", authorities_pem=ca.cert_pem.bytes().decode())
    assert main(["kubeconfig"]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    cluster = made["clusters"][0]["cluster"]
    assert cluster["server"] == SERVER
    assert b64decode(cluster["certificate-authority-data"]) == ca.cert_pem.bytes()
