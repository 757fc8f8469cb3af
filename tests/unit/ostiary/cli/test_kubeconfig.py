"""``ostiary kubeconfig``: what it prints is what kubectl takes, and merging loses nothing."""

from __future__ import annotations

import json
import os
import re
import stat
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
import trustme
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.cli import main
from ostiary.cli.kubeconfig_file import merge
from ostiary.core.yaml import parse
from ostiary.kubeconfig import choose, load
from ostiary.wire.kubeconfig import gateway_kubeconfig

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
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "real", "real.backup-1"]
    assert stat.S_IMODE((tmp_path / "real.backup-1").stat().st_mode) == 0o640


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


@pytest.mark.timeout(20)
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_pipe_or_device_is_never_replaced_by_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, force: list[str]
) -> None:
    """KUBECONFIG=/dev/null is how people switch their kubeconfig off; a pipe stands for it here."""
    path, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(path)
    link.symlink_to(path)
    for name in (path, link):
        monkeypatch.setenv("KUBECONFIG", str(name))
        assert main(["kubeconfig", "--server", "https://gateway.example", "--merge", *force]) == 1
        assert "it is a device or a pipe" in capsys.readouterr().err
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name.startswith(("pipe", "link"))) == [
        "link",
        "pipe",
    ]


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


KEPT = """\
# kept by hand
apiVersion: v1
kind: Config
clusters:
- name: staging            # the old one
  cluster: {server: 'https://other.example'}
users:
- name: staging
  user:
    token: "abc"           # nowhere else
contexts:
- context: {user: staging, cluster: staging}
  name: staging
current-context: staging
"""
ENTRIES = {
    "a cluster of another server": "clusters: [{name: staging, cluster: {server: https://other.example}}]",
    "a cluster of the same host at another path": "clusters: [{name: staging, cluster: {server: https://gateway.example/x}}]",
    "a cluster that trusts anybody": (
        "clusters: [{name: staging, cluster: {server: https://gateway.example, insecure-skip-tls-verify: true}}]"
    ),
    "a cluster without anything": "clusters: [{name: staging}]",
    "a static token": "users: [{name: staging, user: {token: abc}}]",
    "a token file": "users: [{name: staging, user: {tokenFile: /token}}]",
    "a password": "users: [{name: staging, user: {username: a, password: b}}]",
    "a client certificate": "users: [{name: staging, user: {client-certificate: /c, client-key: /k}}]",
    "an auth provider": "users: [{name: staging, user: {auth-provider: {name: oidc}}}]",
    "another exec plugin": "users: [{name: staging, user: {exec: {command: aws, args: [eks, get-token]}}}]",
    "another gateway": (
        "users: [{name: staging, user: {exec: {command: ostiary, args: [get-token, --server, https://other.example]}}}]"
    ),
    "another account": (
        "users: [{name: staging, user: {exec: {command: ostiary, args:"
        " [get-token, --server=https://gateway.example, --account=admin]}}}]"
    ),
    "our plugin beside a token": (
        "users: [{name: staging, user: {token: abc, exec: {command: ostiary, args:"
        " [get-token, --server, https://gateway.example]}}}]"
    ),
    "a user without anything": "users: [{name: staging, user: {}}]",
    "a context of another cluster": "contexts: [{name: staging, context: {cluster: other, user: staging}}]",
    "a context of another user": "contexts: [{name: staging, context: {cluster: staging, user: other}}]",
}


def merge_staging(*words: str) -> int:
    # PEM of a real authority, as text: what the gateway's page gives out.
    pem = trustme.CA().cert_pem.bytes()
    data = ["--ca-data", b64encode(pem).decode()]
    return main(["kubeconfig", "--server", SERVER, "--name", "staging", *data, "--merge", *words])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.mark.parametrize("text", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_that_belongs_to_something_else_is_named_and_not_replaced(
    config: Path, text: str, capsys: Captured
) -> None:
    config.write_text(text + "\n")
    assert merge_staging() == 1
    assert config.read_text() == text + "\n"
    assert [each.name for each in config.parent.iterdir()] == ["config"]
    told = capsys.readouterr().err
    assert 'staging"' in told
    assert "--force" in told
    assert "--name" in told
    assert "abc" not in told


def test_an_entry_that_a_later_file_of_kubeconfig_has_is_not_hidden(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    later = config.with_name("later")
    later.write_text(KEPT)
    monkeypatch.setenv("KUBECONFIG", f"{config}:{config.parent}/missing:{later}")
    assert merge_staging() == 1
    assert not config.exists()
    assert str(later) in capsys.readouterr().err
    assert merge_staging("--force") == 0
    assert later.read_text() == KEPT


def test_with_force_it_is_replaced_and_a_private_copy_is_kept(config: Path, capsys: Captured) -> None:
    config.write_text(KEPT)
    config.chmod(0o600)
    assert merge_staging("--force") == 0
    copies = [each for each in config.parent.iterdir() if each != config]
    assert [each.read_text() for each in copies] == [KEPT]
    assert stat.S_IMODE(copies[0].stat().st_mode) == 0o600
    assert copies[0].name in capsys.readouterr().err
    chosen = choose(config)
    assert chosen.cluster.server == SERVER
    assert chosen.user.exec is not None
    assert chosen.user.token is None
    text = config.read_text()
    assert text.startswith("# kept by hand\n")
    assert "# the old one" in text


def test_each_change_keeps_a_copy_of_its_own_and_no_change_keeps_none(config: Path) -> None:
    config.write_text("# empty\n")
    assert merge_staging() == 0
    before = config.read_bytes()
    assert main(["kubeconfig", "--server", SERVER, "--name", "staging", "--merge"]) == 0
    assert config.read_bytes() == before
    assert main(["kubeconfig", "--server", SERVER, "--name", "more", "--merge"]) == 0
    copies = sorted(each.name for each in config.parent.iterdir() if each != config)
    assert copies == ["config.backup-1", "config.backup-2"]
    assert (config.parent / "config.backup-1").read_text() == "# empty\n"


def test_what_people_added_to_our_own_entry_stays(config: Path) -> None:
    config.write_text(
        "clusters:\n- name: staging\n  cluster:\n    server: https://gateway.example/  # ours\n    proxy-url: http://p:1\n"
        "users:\n- name: staging\n  user:\n    exec:\n      command: /opt/bin/ostiary  # pinned\n"
        "      args: [get-token, --server=https://gateway.example, --timeout, '9']\n      env: [{name: A, value: b}]\n"
        "contexts:\n- name: staging\n  context: {cluster: staging, user: staging, namespace: mine}\n"
    )
    assert merge_staging() == 0
    chosen = choose(config, context="staging")
    assert chosen.namespace == "mine"
    assert chosen.cluster.proxy_url == "http://p:1"
    assert chosen.cluster.certificate_authority_data
    assert chosen.user.exec is not None
    assert chosen.user.exec.command == "/opt/bin/ostiary"
    assert chosen.user.exec.args[-1] == "9"
    assert chosen.user.exec.provide_cluster_info
    for comment in ("# ours", "# pinned", "env: [{name: A, value: b}]"):
        assert comment in config.read_text()


def test_a_kubeconfig_in_json_stays_json(config: Path) -> None:
    old = {
        "kind": "Config",
        "clusters": [{"name": "a", "cluster": {"server": "https://a"}}],
        "users": [],
        "contexts": None,
        "current-context": "a",
    }
    config.write_text(json.dumps(old, indent=4))
    assert merge_staging() == 0
    new = json.loads(config.read_text())
    assert [each["name"] for each in new["clusters"]] == ["a", "staging"]
    assert [each["name"] for each in new["users"] + new["contexts"]] == ["staging", "staging"]
    assert new["current-context"] == "a"


def test_the_lock_of_a_link_is_the_one_that_kubectl_takes(config: Path, capsys: Captured) -> None:
    (config.parent / "real").write_text("")
    config.symlink_to(config.parent / "real")
    config.with_name("config.lock").touch()
    assert merge_staging() == 1
    assert "config.lock" in capsys.readouterr().err
    config.with_name("config.lock").unlink()
    assert merge_staging() == 0
    assert config.is_symlink()
    assert not list(config.parent.glob("*.lock"))


def test_names_that_yaml_takes_for_something_else_are_quoted(capsys: Captured, tmp_path: Path) -> None:
    for name in ("y", "1e3", "0o7", "null", "on", "1", "~", "2024-01-01"):
        assert main(["kubeconfig", "--server", SERVER, "--name", name, "--namespace", name]) == 0
        (tmp_path / "config").write_text(capsys.readouterr().out)
        assert choose(tmp_path / "config").context_name == name


LINES = [
    "# a comment",
    "preferences: {}",
    "preferences:\n  colors: true   # yes",
    "extensions:\n- name: x\n  extension: {a: [1, 'two']}",
    "",
]
OLD_SECTIONS = {
    "clusters": ["", "[]", "null", "\n- name: a   # one\n  cluster:\n    server: https://a\n\n# more", " [{name: a}]"],
    "users": ["", "[]", "\n  - name: a\n    user: {token: 'x'}", '\n- {"name": "a", "user": {}}', "\n-   name: a\n"],
    "contexts": ["~", " [ ]", "\n- name: a\n  context:\n    cluster: a\n    namespace: |-\n      text"],
}


@st.composite
def kubeconfigs(draw: st.DrawFn) -> str:
    parts = [f"{section}: {draw(st.sampled_from(OLD_SECTIONS[section]))}" for section in OLD_SECTIONS]
    parts = [part for part in parts if draw(st.booleans())] + ["current-context: a"]
    extra = {line.partition(":")[0]: line for line in draw(st.lists(st.sampled_from(LINES), max_size=4))}
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    text = "\n".join(draw(st.permutations([*parts, *extra.values()])))
    return text.replace("\n", newline) + draw(st.sampled_from(["", newline, newline * 2]))


@settings(max_examples=200, deadline=None)
@given(kubeconfigs())
def test_merging_leaves_every_byte_that_is_not_ours(text: str) -> None:
    """Without the lines of our three entries, the text is what it was before."""
    made = gateway_kubeconfig(SERVER, name="ours", authorities_pem="PEM")
    new = merge(text, made)
    before, after = parse(text).value, parse(new).value
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    for section in ("clusters", "users", "contexts"):
        old = before.pop(section, None) or []
        assert isinstance(old, list)
        assert after.pop(section) == [*old, *made[section]]
    assert after == before
    # Every line is still there, in its order; only an empty list gives way to a filled one.
    lines = iter(new.splitlines(keepends=True))
    for line in text.splitlines(keepends=True):
        emptied = re.sub(r"(\[ ?\]|null|~)(?=\s*$)", "", line)
        start = line.rstrip("\r\n").removesuffix("]")
        assert any(
            other == line or other.rstrip() == emptied.rstrip() or (start != "" and other.startswith(start))
            for other in lines
        ), line


@pytest.mark.parametrize(
    "words", [["--server", "http://gateway.example"], ["--server", SERVER, "--prefix", "staging"], ["--account", ""]]
)
def test_what_cannot_be_meant_is_refused(words: list[str], capsys: Captured) -> None:
    assert main(["kubeconfig", *words]) in (1, 2)
    assert capsys.readouterr().out == ""


def test_the_authority_of_the_session_comes_along(capsys: Captured, tmp_path: Path, ca: trustme.CA) -> None:
    from datetime import UTC, datetime

    from ostiary.cli.login.sessions import GatewayAccount, Sessions, SignInGrant
    from ostiary.model import Secret

    end = datetime(2999, 1, 1, tzinfo=UTC)
    grant = SignInGrant(Secret("t"), end, Secret("r"), "s1", end, "ann")
    Sessions(GatewayAccount(SERVER)).save(grant, store="file", authorities_pem=ca.cert_pem.bytes().decode())
    assert main(["kubeconfig"]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    cluster = made["clusters"][0]["cluster"]
    assert cluster["server"] == SERVER
    assert b64decode(cluster["certificate-authority-data"]) == ca.cert_pem.bytes()
