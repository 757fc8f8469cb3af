"""The files that a configuration names are looked at for what the declaration says they hold."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ostiary.core.yaml import parse
from ostiary_gateway.config.file_checks import FileChecks, check_files

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def checks_of(text: str, directory: Path) -> FileChecks:
    return check_files(parse(text, file="gateway.yaml"), directory, now=NOW)


def places(text: str, directory: Path) -> list[str]:
    checks = checks_of(text, directory)
    return [problem.place.path for problem in (*checks.problems, *checks.notes)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("empty", "open", "closed"):
        path = tmp_path / name
        path.write_text("" if name == "empty" else "text")
        path.chmod(0o600)
    (tmp_path / "open").chmod(0o666)
    return tmp_path


STORE = "store: {type: memory}\n"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("identity: [{name: a, type: oidc, clientSecretFile: empty}]", "identity[0].clientSecretFile"),
        ("identity: [{name: a, type: ldap, bindPasswordFile: empty}]", "identity[0].bindPasswordFile"),
        ("identity: [{name: a, type: htpasswd, path: open}]", "identity[0].path"),
        ("groups: [{name: a, type: google, keyFile: empty}]", "groups[0].keyFile"),
        ("groups: [{name: a, type: file, path: open}]", "groups[0].path"),
        ("authorization: {chain: [{name: a, type: rbac, paths: [closed, open]}]}", "authorization.chain[0].paths[1]"),
        ("upstreams: [{name: a, tokenFile: empty}]", "upstreams[0].tokenFile"),
        ("upstreams: [{name: a, tls: {key: open}}]", "upstreams[0].tls.key"),
        ("webhooks: {callers: {tokenFile: empty}}", "webhooks.callers.tokenFile"),
        ("audit: {log: {path: missing/audit.log}}", "audit.log.path"),
        ("audit: {webhook: {tokenFile: open}}", "audit.webhook.tokenFile"),
        ("tokens: {revocationFile: missing/revoked}", "tokens.revocationFile"),
    ],
)
def test_a_file_is_looked_at_for_what_it_holds(text: str, where: str, directory: Path) -> None:
    assert places(STORE + text, directory) == [where]


def test_the_files_of_an_undeclared_provider_are_known_by_their_names(directory: Path) -> None:
    text = "identity: [{name: a, type: nobody-knows-it, path: open, deep: {tokenFile: empty}, other: open}]"
    assert places(STORE + text, directory) == ["identity[0].deep.tokenFile", "identity[0].path"]


def test_the_store_is_in_this_directory_unless_something_else_is_said(directory: Path) -> None:
    assert places("log: {}", directory / "missing") == ["store"]
    assert places("store: {type: sqlite, path: missing/a.db}", directory) == ["store.path"]
    assert places("store: {type: sqlite, path: ':memory:'}", directory / "missing") == []


def test_a_mapping_where_a_text_belongs_is_left_to_the_loader(directory: Path) -> None:
    assert places(STORE + "externalCA: {a: b}\nidentity: {a: b}\nupstreams: 7", directory) == []


def test_a_readable_secret_is_a_note_and_a_writable_one_a_problem(directory: Path) -> None:
    text = STORE + "upstreams: [{name: a, tokenFile: closed}]"
    (directory / "closed").chmod(stat.S_IRUSR | stat.S_IROTH)
    assert [str(note.place.path) for note in checks_of(text, directory).notes] == ["upstreams[0].tokenFile"]
    (directory / "closed").chmod(0o606)
    assert [str(problem.place.path) for problem in checks_of(text, directory).problems] == ["upstreams[0].tokenFile"]
