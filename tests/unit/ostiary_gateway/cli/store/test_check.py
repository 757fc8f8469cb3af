"""``ostiary-gateway store check``: what a store holds, and what is wrong with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.open_store import opened_elsewhere
from tests.unit.ostiary_gateway.cli.store.stores import Captured, put_object, revoke, run, run_json, sign_in

pytestmark = pytest.mark.usefixtures("site")


def test_a_store_without_problems_is_described(capsys: Captured, tmp_path: Path) -> None:
    sign_in("ann", "bob", "eve")
    revoke("bob")
    code, out, _ = run(capsys, "check")
    assert code == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert lines["store"] == f"sqlite {tmp_path}/tokens.db"
    assert lines["schema"] == "version 2 of 2"
    assert lines["sessions"] == "2, 0 of them without a token"
    assert lines["tokens"].startswith("4: 2 access, 2 renewal, 0 spent, 0 browser, 0 application; 0 expired")
    assert lines["revocations"] == "the newest is number 1; 1 still refuse logins that began before them"
    assert lines["used"] == "by no gateway that the store knows of"
    assert lines["objects"] == "none"
    assert lines["OK:"] == "no problems found"


def test_objects_are_counted_by_kind(capsys: Captured) -> None:
    for kind, name in (("signing-key", "k1"), ("service-account", "a"), ("service-account", "b")):
        put_object(kind, name)
    assert "objects      2 service-account, 1 signing-key" in run(capsys, "check")[1]
    assert run_json(capsys, "check")[1]["objects"] == {"service-account": 2, "signing-key": 1}


def test_a_program_gets_json(capsys: Captured, tmp_path: Path) -> None:
    sign_in("ann")
    code, said = run_json(capsys, "check", "--config", "gateway.yaml")
    assert code == 0
    assert said.pop("facts").keys() == {"schema", "file", "engine"}
    assert said == {
        "store": f"sqlite {tmp_path}/tokens.db",
        "clockAheadSeconds": None,
        "gateway": None,
        "usedBy": [],
        "sessions": 1,
        "sessionsWithoutTokens": 0,
        "tokens": {"access": 1, "renewal": 1},
        "tokensKept": 2,
        "tokensExpired": 0,
        "objects": {},
        "revocation": 0,
        "marks": 0,
        "problems": [],
    }


def test_what_is_wrong_is_said_and_the_exit_code_too(capsys: Captured) -> None:
    sign_in("ann")
    with closing(sqlite3.connect("tokens.db")) as db, db:
        columns = "digest, session, kind, issued_at, expires_at"
        db.execute(f"INSERT INTO tokens ({columns}) SELECT x'00', 99, 0, issued_at, expires_at FROM tokens LIMIT 1")
        db.execute("UPDATE tokens SET expires_at = 0 WHERE kind = 0")
    code, out, _ = run(capsys, "check")
    assert code == 1
    assert "problem: 1 tokens have no session" in out
    assert "OK" not in out
    code, said = run_json(capsys, "check")
    assert (code, said["problems"]) == (1, ["1 tokens have no session"])
    assert (said["tokensKept"], said["tokensExpired"]) == (3, 2)


def test_who_else_uses_it_is_named(capsys: Captured, tmp_path: Path) -> None:
    sign_in("ann")
    with opened_elsewhere(tmp_path / "tokens.db") as other:
        code, said = run_json(capsys, "check")
    assert code == 0
    (user,) = said["usedBy"]
    assert user.startswith(f"process {other.pid} ")


def test_a_store_that_cannot_be_used_is_an_error(capsys: Captured) -> None:
    Path("tokens.db").write_text("no database, and long enough to be taken for one" * 100)
    code, out, err = run(capsys, "check")
    assert (code, out) == (1, "")
    assert "token-store-unavailable" in err


def test_a_store_that_does_not_exist_is_not_made(capsys: Captured) -> None:
    code, _, err = run(capsys, "check")
    assert code == 1
    assert "there is no token store yet" in err
    assert not Path("tokens.db").exists()
