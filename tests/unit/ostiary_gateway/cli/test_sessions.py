"""``ostiary-gateway sessions`` on the store of a configuration; tokens never stand where they can be seen."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.cli import main
from ostiary_gateway.sessions import Issued, Tokens, digest
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from tests.support.gateway import GatewayFolder

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    return GatewayFolder(tmp_path)


def sign_in(site: GatewayFolder, *users: UserInfo) -> list[Issued]:
    async def work() -> list[Issued]:
        store = SqliteTokenStore(site.folder / "tokens.db")
        try:
            return [await Tokens(store).issue(user, provider="staff", client="kubectl") for user in users]
        finally:
            await store.close()

    return asyncio.run(work())


def alive(site: GatewayFolder, issued: Issued) -> bool:
    async def work() -> bool:
        store = SqliteTokenStore(site.folder / "tokens.db")
        try:
            return await Tokens(store).find(issued.token.reveal()) is not None
        finally:
            await store.close()

    return asyncio.run(work())


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["sessions", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


ALICE, BOB = UserInfo("alice", groups=("dev",)), UserInfo("bob", groups=("ops", "a b"))


def test_sessions_are_listed_and_chosen(capsys: Captured, site: GatewayFolder) -> None:
    sign_in(site, ALICE, BOB)
    code, out, _ = run(capsys, "list")
    header, *lines = out.splitlines()
    assert code == 0
    assert header.split() == ["ID", "USER", "GROUPS", "PROVIDER", "CLIENT", "CREATED", "EXPIRES"]
    assert {line.split()[1] for line in lines} == {"alice", "bob"}
    assert "ops, a b" in out
    for options, user in ((("--user", "alice"), "alice"), (("--group", "ops"), "bob")):
        (item,) = json.loads(run(capsys, "list", *options, "-o", "json")[1])["items"]
        assert item["user"] == user
    assert run(capsys, "list", "--user", "eve")[1] == "there are no active sessions\n"


def test_an_api_token_is_listed_by_its_name(capsys: Captured, site: GatewayFolder) -> None:
    async def issue() -> None:
        store = SqliteTokenStore(site.folder / "tokens.db")
        try:
            tokens = Tokens(store)
            for name, client in (("backup", "curl"), ("", "kubectl 1.30")):
                await tokens.issue_token(ALICE, provider="staff", client=client, name=name, lifetime=timedelta(hours=1))
        finally:
            await store.close()

    asyncio.run(issue())
    out = run(capsys, "list")[1]
    assert 'API token "backup"' in out
    assert "kubectl 1.30" in out
    assert "curl" not in out
    assert out.count("API token") == 1


@pytest.mark.parametrize(
    ("kind", "value", "ended", "left"),
    [
        ("user", "alice", "1 session ended\n", [False, True]),
        ("group", "ops", "1 session ended\n", [True, False]),
        ("before", "now", "2 sessions ended\n", [False, False]),
        ("before", "1h", "0 sessions ended\n", [True, True]),
        ("before", "2020-01-01T00:00:00Z", "0 sessions ended\n", [True, True]),
        ("user", "Alice", "0 sessions ended\n", [True, True]),
    ],
)
def test_what_is_revoked_is_gone_and_counted(
    capsys: Captured, site: GatewayFolder, kind: str, value: str, ended: str, left: list[bool]
) -> None:
    issued = sign_in(site, ALICE, BOB)
    code, out, err = run(capsys, "revoke", kind, value)
    assert (code, out) == (0, ended)
    assert ("no active session or token matched" in err) == ended.startswith("0")
    assert [alive(site, one) for one in issued] == left


def test_a_session_is_revoked_by_its_id(capsys: Captured, site: GatewayFolder) -> None:
    first, second = sign_in(site, ALICE, ALICE)
    assert json.loads(run(capsys, "revoke", "session", first.session.id, "-o", "json")[1]) == {
        "type": "session",
        "ended": 1,
    }
    assert [alive(site, one) for one in (first, second)] == [False, True]


@pytest.mark.parametrize("how", ["file", "stdin", "digest"])
def test_a_token_is_taken_from_a_file_from_stdin_or_by_its_digest(
    capsys: Captured, site: GatewayFolder, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first, second = sign_in(site, ALICE, ALICE)
    token = first.token.reveal()
    (site.folder / "leaked").write_text(token + "\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(token + "\n"))
    value = {"file": "leaked", "stdin": "-", "digest": digest(token).hex()}[how]
    code, out, err = run(capsys, "revoke", "token", value)
    assert (code, out) == (0, "1 token ended\n")
    assert token not in err
    assert [alive(site, one) for one in (first, second)] == [False, True]


@pytest.mark.parametrize("shape", ["revoke token {}", "revoke session {}", "revoke {} x", "revoke token x {}", "{}"])
def test_a_token_on_the_command_line_is_refused_and_not_repeated(
    capsys: Captured, site: GatewayFolder, shape: str
) -> None:
    (issued,) = sign_in(site, ALICE)
    for secret in (issued.token.reveal(), issued.renewal.reveal()):
        code, out, err = run(capsys, *shape.format(secret).split())
        assert (code, out) == (2, "")
        assert secret not in err
        assert secret[4:] not in err
    assert alive(site, issued)


def test_a_file_that_holds_no_token_is_not_quoted(capsys: Captured, site: GatewayFolder) -> None:
    sign_in(site, ALICE)
    (site.folder / "leaked").write_text("ost_not-quite-a-token")
    code, _, err = run(capsys, "revoke", "token", "leaked")
    assert code == 1
    assert "not-quite" not in err
    assert "code   token-file-unreadable" in err
    assert run(capsys, "revoke", "token", "gone")[0] == 1


@pytest.mark.parametrize("value", ["tomorrow", "2026-01-31T12:00:00", "12"])
def test_a_time_that_is_none_revokes_nothing(capsys: Captured, site: GatewayFolder, value: str) -> None:
    (issued,) = sign_in(site, ALICE)
    assert run(capsys, "revoke", "before", value)[0] == 2
    assert alive(site, issued)


def test_a_time_ahead_is_refused_and_nothing_is_revoked(capsys: Captured, site: GatewayFolder) -> None:
    (issued,) = sign_in(site, ALICE)
    code, out, err = run(capsys, "revoke", "before", "2999-01-01T00:00:00Z")
    assert (code, out) == (2, "")
    assert "the time is in the future" in err
    assert alive(site, issued)


def test_a_revocation_can_be_taken_back(capsys: Captured, site: GatewayFolder) -> None:
    """What has ended stays ended; whoever was signing in is no longer refused."""
    (issued,) = sign_in(site, ALICE)
    for kind, value in (("user", "alice"), ("before", "now"), ("session", issued.session.id)):
        assert run(capsys, "revoke", kind, value)[0] == 0
        assert run(capsys, "revoke", "--undo", kind, value)[:2] == (0, "1 revocation undone\n")
        code, _, err = run(capsys, "revoke", "--undo", kind, value)
        assert code == 1
        assert "unknown revocation" in err
    assert not alive(site, issued)
    run(capsys, "revoke", "user", "alice")
    assert json.loads(run(capsys, "revoke", "--undo", "user", "alice", "-o", "json")[1]) == {
        "type": "user",
        "undone": 1,
    }


def test_a_store_that_is_not_there_is_not_made(capsys: Captured, site: GatewayFolder) -> None:
    code, _, err = run(capsys, "list")
    assert code == 1
    assert "there is no token store yet" in err
    assert not os.path.exists(site.folder / "tokens.db")


def test_sessions_in_memory_can_only_be_asked_for_at_the_gateway(capsys: Captured, site: GatewayFolder) -> None:
    site.write_config(store={"type": "memory"})
    code, _, err = run(capsys, "list")
    assert code == 1
    assert "--server" in err
