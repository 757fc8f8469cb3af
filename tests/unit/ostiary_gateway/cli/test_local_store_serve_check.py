"""``ostiary-gateway serve --check``: what would not work is told before anything listens, with its place."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from ostiary_gateway.cli import main
from tests.support.http_server import HttpServer, Response
from tests.support.issuer import Issuer

Captured = pytest.CaptureFixture[str]
Write = Callable[..., None]

CONFIG = """\
apiVersion: ostiary.dev/v1
kind: Gateway
listen:
  tls:
    certificate: tls.pem
    key: tls.key
externalCA: ca.pem
store: {{type: sqlite, path: {store}}}
identity: [{identity}]
authorization: {{chain: [{{name: all, type: allow_all}}]}}
upstreams: [{{name: api, server: "{upstream}", attributes: {{type: http}}}}]
audit: {{log: {{path: {audit}}}}}
"""
SINGLE = "{name: me, type: single_user}"


@pytest.fixture
def write(tmp_path: Path, ca: trustme.CA) -> Write:
    """Writes a configuration that is right, but for what is said."""

    def write(
        *,
        expires: timedelta | None = None,
        begins: timedelta = timedelta(0),
        store: str = "tokens.db",
        audit: str = "audit.log",
        upstream: str = "http://127.0.0.1:1",
        identity: str = SINGLE,
    ) -> None:
        now = datetime.now(UTC)
        ends = None if expires is None else now + expires
        leaf = ca.issue_cert("gateway.example", not_before=now + begins, not_after=ends)
        leaf.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
        (tmp_path / "tls.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        (tmp_path / "tls.key").chmod(0o600)
        text = CONFIG.format(store=store, audit=audit, upstream=upstream, identity=identity)
        (tmp_path / "gateway.yaml").write_text(text)

    return write


def check(tmp_path: Path, *more: str) -> int:
    return main(["serve", "--check", "--config", str(tmp_path / "gateway.yaml"), *more])


def test_a_configuration_that_works_is_ok(write: Write, tmp_path: Path, capsys: Captured) -> None:
    write()
    assert check(tmp_path) == 0
    assert capsys.readouterr().out == f"{tmp_path}/gateway.yaml: OK\n"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"expires": timedelta(days=-1), "begins": timedelta(days=-9)}, ["expired on", ":5, listen.tls.certificate"]),
        ({"begins": timedelta(days=2), "expires": timedelta(days=9)}, ["not valid before", "listen.tls.certificate"]),
        ({"store": "missing/tokens.db"}, ["missing does not exist", ":8, store.path", "mkdir"]),
        ({"audit": "nowhere/audit.log"}, ["does not exist", "audit.log.path"]),
    ],
    ids=["expired", "not yet valid", "no directory for sessions", "no directory for the audit log"],
)
def test_what_would_not_work_is_told_with_its_place(
    write: Write, tmp_path: Path, capsys: Captured, parts: dict[str, object], told: list[str]
) -> None:
    write(**parts)
    assert check(tmp_path) == 1
    captured = capsys.readouterr()
    assert "OK" not in captured.out
    for text in told:
        assert text in captured.err


def test_a_certificate_that_ends_soon_is_noted(write: Write, tmp_path: Path, capsys: Captured) -> None:
    write(expires=timedelta(days=3))
    assert check(tmp_path) == 0
    assert "expires on" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "code"), [(0o666, 1), (0o620, 1), (0o644, 0), (0o640, 0), (0o600, 0)])
def test_a_key_that_others_may_change_or_read_is_told(
    write: Write, tmp_path: Path, capsys: Captured, mode: int, code: int
) -> None:
    write()
    (tmp_path / "tls.key").chmod(mode)
    assert check(tmp_path) == code
    told = capsys.readouterr().err
    assert (f"{mode:04o}" in told and "listen.tls.key" in told) is (mode not in (0o600, 0o640))


def test_a_key_of_another_certificate_is_told(write: Write, tmp_path: Path, capsys: Captured, ca: trustme.CA) -> None:
    write()
    ca.issue_cert("other.example").private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    assert check(tmp_path) == 1
    assert "listen.tls.certificate" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_told(write: Write, tmp_path: Path, capsys: Captured) -> None:
    write(store="closed/tokens.db")
    (tmp_path / "closed").mkdir(mode=0o500)
    assert check(tmp_path) == 1
    assert "cannot be written" in capsys.readouterr().err


# --- online ---


def test_online_asks_issuers_and_upstreams_and_reports_each(
    write: Write, tmp_path: Path, capsys: Captured, ca: trustme.CA
) -> None:
    from ostiary.core.clock import SYSTEM_CLOCK

    with Issuer(ca, SYSTEM_CLOCK).running() as issuer:
        oidc = f"{{name: corp, type: oidc, issuer: '{issuer.url}', clientID: g, ca: ca.pem}}"
        # The issuer is an HTTP server like any other, and does as an upstream, too.
        upstream = "http://127.0.0.1:1"
        write(identity=oidc, upstream=upstream)
        assert check(tmp_path, "--online") == 1
        told = capsys.readouterr().out
        assert f'identity "corp": OK: the issuer {issuer.url}' in told
        assert 'upstream "api": FAILED: it cannot be reached' in told
        issuer.metadata["issuer"] = "https://it.calls.itself.example"
        assert check(tmp_path, "--online") == 1
        told = capsys.readouterr().out
        assert 'identity "corp": FAILED' in told
        assert "https://it.calls.itself.example" in told


def test_online_an_upstream_that_answers_is_ok(write: Write, tmp_path: Path, capsys: Captured) -> None:
    with HttpServer(Response(404)).running() as server:
        write(upstream=server.url)
        assert check(tmp_path, "--online") == 0
    told = capsys.readouterr().out
    assert 'upstream "api": OK' in told
    assert told.endswith("gateway.yaml: OK\n")


def test_online_who_does_not_answer_is_given_up(
    write: Write, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostiary_gateway.server import online_check

    monkeypatch.setattr(online_check.probe_all, "__kwdefaults__", {"seconds": 0.2})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write(upstream=f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert check(tmp_path, "--online") == 1
    assert "did not answer within 0.2 seconds" in capsys.readouterr().out


def test_online_belongs_to_check(write: Write, tmp_path: Path) -> None:
    write()
    assert main(["serve", "--online", "--config", str(tmp_path / "gateway.yaml")]) == 2


@pytest.mark.parametrize(("mode", "is_told"), [(0o666, True), (0o602, True), (0o664, False), (0o644, False)])
def test_a_file_that_decides_and_that_everybody_may_change_is_told(
    write: Write, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, mode: int, is_told: bool
) -> None:
    """Groups and policies say who may do what, in a directory of them as well."""
    monkeypatch.chdir(tmp_path)
    write()
    (tmp_path / "policy").mkdir(mode=0o777)
    (tmp_path / "policy" / "p.yaml").write_text("")
    (tmp_path / "teams").write_text("dev: []\n")
    for name in ("policy/p.yaml", "teams"):
        (tmp_path / name).chmod(mode)
    chain = "{name: rbac, type: rbac, paths: [policy]}"
    text = (tmp_path / "gateway.yaml").read_text().replace("{name: all, type: allow_all}", chain)
    (tmp_path / "gateway.yaml").write_text(text + "groups: [{name: teams, type: file, path: teams}]\n")
    assert main(["serve", "--check"]) == 0
    err = capsys.readouterr().err
    assert ("authorization.chain[0].paths[0]: everybody on this machine may change" in err) is is_told
    assert ("groups[0].path: everybody on this machine may change" in err) is is_told


def test_a_secret_that_is_empty_is_told(
    write: Write, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write()
    text = (tmp_path / "gateway.yaml").read_text().replace("attributes: {type: http}", "tokenFile: token")
    (tmp_path / "gateway.yaml").write_text(text)
    (tmp_path / "token").touch(0o600)
    assert main(["serve", "--check"]) == 1
    err = capsys.readouterr().err
    assert "the file is empty" in err
    assert "upstreams[0].tokenFile" in err
