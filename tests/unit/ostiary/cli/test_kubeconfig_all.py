"""``ostiary kubeconfig --all``: a context for each cluster that the gateway offers, and one session for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ostiary.cli import main
from ostiary.cli.login.sessions import GatewayAccount, Sessions, SignInGrant
from ostiary.kubeconfig import choose, load
from ostiary.model import Secret
from tests.support.signin_server import SigninServer

Captured = pytest.CaptureFixture[str]
FAR = datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture
def server(ca: trustme.CA, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SigninServer]:
    """A gateway with two clusters, where the person has signed in."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with SigninServer(ca).running() as server:
        sign_in(server, ca)
        server.clusters = [
            {"name": "dev", "label": "Development", "server": f"{server.url}/dev", "access": "granted"},
            {"name": "prod", "label": "prod", "server": "https://prod.example:8443", "access": "unknown"},
        ]
        yield server


def sign_in(server: SigninServer, ca: trustme.CA, name: str = "default") -> None:
    token = f"ost_of_{name}"
    server.tokens[token] = FAR
    grant = SignInGrant(Secret(token), FAR, Secret("osr_x"), "s1", FAR, "ann")
    account = GatewayAccount(server.url) if name == "default" else GatewayAccount(server.url, name)
    Sessions(account).save(grant, store="file", authorities_pem=ca.cert_pem.bytes().decode())


def merge(server: SigninServer, *words: str) -> int:
    return main(["kubeconfig", "--server", server.url, "--all", "--merge", *words])


def config(tmp_path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load((tmp_path / "config").read_text())
    assert isinstance(loaded, dict)
    return loaded


def names(tmp_path: Path, section: str) -> list[str]:
    return [entry["name"] for entry in config(tmp_path)[section]]


def test_each_cluster_gets_a_context_and_all_of_them_one_user(
    server: SigninServer, tmp_path: Path, ca: trustme.CA
) -> None:
    assert merge(server, "--namespace", "team") == 0
    path = tmp_path / "config"
    assert load(path).current_context == "localhost/dev"
    for name, url in (("dev", f"{server.url}/dev"), ("prod", "https://prod.example:8443")):
        context = choose(path, context=f"localhost/{name}")
        assert (context.cluster.server, context.namespace) == (url, "team")
        assert context.cluster.certificate_authority_data == ca.cert_pem.bytes()
        # get-token is told that the cluster is behind this gateway, wherever that is.
        assert context.cluster.exec_extension == {"gateway": server.url}
        plugin = context.user.exec
        assert plugin is not None
        assert plugin.args == ("get-token", "--server", server.url)
        assert plugin.provide_cluster_info
    assert names(tmp_path, "users") == ["localhost"]


def test_doing_it_again_changes_nothing_and_what_people_add_stays(server: SigninServer, tmp_path: Path) -> None:
    assert merge(server) == 0
    path = tmp_path / "config"
    text = path.read_text().replace(
        "  name: localhost/dev\n- context", "    namespace: mine\n  name: localhost/dev\n- context"
    )
    text = text.replace(
        "    extensions:\n    - name: ostiary.dev/upstream",
        "    extensions:\n    - name: theirs\n      extension: {a: 1}\n    - name: ostiary.dev/upstream",
        1,
    )
    path.write_text(text)
    assert "namespace: mine" in text
    assert "theirs" in text
    assert merge(server) == 0
    assert path.read_text() == text
    assert not path.with_name("config.backup-1").exists()


def test_the_context_of_the_single_command_and_those_of_all_share_the_session(
    server: SigninServer, tmp_path: Path
) -> None:
    assert main(["kubeconfig", "--server", server.url, "--merge"]) == 0
    assert merge(server) == 0
    assert names(tmp_path, "contexts") == ["localhost", "localhost/dev", "localhost/prod"]
    assert names(tmp_path, "users") == ["localhost"]


def test_accounts_and_names_keep_contexts_apart(server: SigninServer, tmp_path: Path, ca: trustme.CA) -> None:
    sign_in(server, ca, "admin")
    assert merge(server) == 0
    assert merge(server, "--account", "admin") == 0
    assert merge(server, "--name", "work") == 0
    assert names(tmp_path, "contexts") == [
        *("localhost/dev", "localhost/prod"),
        *("admin@localhost/dev", "admin@localhost/prod"),
        *("work/dev", "work/prod"),
    ]


@pytest.mark.parametrize(
    "taken",
    [
        "clusters: [{name: localhost/prod, cluster: {server: https://other.example}}]\n",
        "users: [{name: localhost, user: {token: abc}}]\n",
        "contexts: [{name: localhost/prod, context: {cluster: mine, user: mine}}]\n",
    ],
)
def test_an_entry_of_somebody_else_is_not_replaced(
    server: SigninServer, tmp_path: Path, capsys: Captured, taken: str
) -> None:
    path = tmp_path / "config"
    path.write_text(taken)
    assert merge(server) == 1
    assert "kubeconfig-name-taken" in capsys.readouterr().err
    assert path.read_text() == taken
    assert merge(server, "--force") == 0
    assert choose(path, context="localhost/prod").cluster.server == "https://prod.example:8443"


def test_a_context_that_is_gone_is_reported_and_removed_only_if_that_is_wanted(
    server: SigninServer, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "config"
    path.write_text(
        "# mine\ncontexts:\n- {name: localhost/mine, context: {cluster: mine, user: localhost}} # by hand\n"
    )
    assert merge(server) == 0
    server.clusters = [each for each in server.clusters if each["name"] == "dev"]
    capsys.readouterr()
    assert merge(server) == 0
    assert "not offered to you any more: localhost/prod; --prune removes them" in capsys.readouterr().err
    assert "localhost/prod" in names(tmp_path, "contexts")
    assert merge(server, "--prune") == 0
    assert "removed, since not offered to you any more: localhost/prod" in capsys.readouterr().err
    assert names(tmp_path, "contexts") == ["localhost/mine", "localhost/dev"]
    assert names(tmp_path, "clusters") == ["localhost/dev"]
    assert names(tmp_path, "users") == ["localhost"]
    assert "# by hand" in path.read_text()


def test_all_contexts_can_be_gone(server: SigninServer, tmp_path: Path, capsys: Captured) -> None:
    assert merge(server) == 0
    server.clusters = []
    assert merge(server) == 1
    assert "there is no cluster that you may use" in capsys.readouterr().err
    assert merge(server, "--prune") == 0
    assert config(tmp_path)["contexts"] == config(tmp_path)["clusters"] == []


def test_nothing_is_taken_for_gone_while_the_gateway_cannot_ask_about_it(
    server: SigninServer, tmp_path: Path, capsys: Captured
) -> None:
    assert merge(server) == 0
    server.clusters, server.incomplete = server.clusters[:1], True
    assert merge(server, "--prune") == 0
    assert "some clusters could not be checked" in capsys.readouterr().err
    assert names(tmp_path, "contexts") == ["localhost/dev", "localhost/prod"]


def test_contexts_of_another_gateway_or_user_stay(server: SigninServer, tmp_path: Path, ca: trustme.CA) -> None:
    sign_in(server, ca, "admin")
    assert merge(server, "--account", "admin") == 0
    path = tmp_path / "config"
    other = path.read_text().replace(server.url, "https://other.example").replace("admin@localhost", "other")
    path.write_text(other)
    assert merge(server, "--account", "admin") == 0
    server.clusters = server.clusters[:1]
    assert merge(server, "--prune") == 0
    assert names(tmp_path, "contexts") == [
        *("other/dev", "other/prod"),
        *("admin@localhost/dev", "admin@localhost/prod"),
        "localhost/dev",
    ]


def test_without_a_session_one_is_told_how_to_get_it(server: SigninServer, tmp_path: Path, capsys: Captured) -> None:
    server.end_sessions()
    assert merge(server) == 1
    assert f"ostiary login --server {server.url}" in capsys.readouterr().err
    assert main(["kubeconfig", "--server", server.url, "--all", "--account", "nobody"]) == 1
    assert "sign in first" in capsys.readouterr().err
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("dev\x1b[2J", "https://gateway.example"),
        ("Dev/../x", "https://gateway.example"),
        ("dev", "http://gateway.example"),
        ("dev", "ftp://gateway.example"),
        ("dev", "https://user:pw@gateway.example"),
    ],
)
def test_what_a_gateway_cannot_mean_is_not_written(
    server: SigninServer, tmp_path: Path, capsys: Captured, name: str, url: str
) -> None:
    server.clusters = [{"name": name, "server": url}]
    assert merge(server) == 1
    said = capsys.readouterr().err
    assert "gateway-answer-invalid" in said
    assert "\x1b" not in said
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--prune", "--merge"],
        ["--all", "--prune"],
        ["--all", "--prefix", "/x"],
        ["--all", "--api-server", "https://x", "--jwt-for", "x"],
    ],
)
def test_options_that_do_not_go_together(server: SigninServer, words: list[str], capsys: Captured) -> None:
    assert main(["kubeconfig", "--server", server.url, *words]) == 2
    assert capsys.readouterr().out == ""
