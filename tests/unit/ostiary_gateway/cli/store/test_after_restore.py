"""``ostiary-gateway store after-restore``: nothing that a backup brought back is accepted."""

from __future__ import annotations

import shutil

import pytest

from tests.unit.ostiary_gateway.cli.store.stores import Captured, alive, put_object, revoke, run, run_json, sign_in

pytestmark = pytest.mark.usefixtures("site")


def test_what_was_revoked_after_the_backup_is_refused(capsys: Captured) -> None:
    issued = sign_in("ann", "bob")
    shutil.copy("tokens.db", "backup.db")
    revoke("bob")
    shutil.copy("backup.db", "tokens.db")
    assert alive(issued, file="tokens.db") == [True, True], "this is the danger"
    assert run(capsys, "after-restore") == (0, "2 sessions ended: everybody signs in again\n", "")
    assert alive(issued, file="tokens.db") == [False, False]
    assert alive(sign_in("ann"), file="tokens.db") == [True]
    assert run_json(capsys, "after-restore", "--config", "gateway.yaml") == (0, {"ended": 1, "objects": {}})


def test_what_was_deleted_after_the_backup_is_back_and_that_is_said(capsys: Captured) -> None:
    put_object("signing-key", "k1")
    put_object("service-account", "shop/deploy")
    code, out, err = run(capsys, "after-restore")
    assert (code, out) == (0, "0 sessions ended: everybody signs in again\n")
    assert "the backup has brought back 1 service-account, 1 signing-key: delete again what was deleted" in err
    assert run_json(capsys, "after-restore") == (0, {"ended": 0, "objects": {"service-account": 1, "signing-key": 1}})


def test_it_is_said_what_for(capsys: Captured) -> None:
    code, out, _ = run(capsys, "after-restore", "--help")
    assert code == 0
    assert "ends every session" in out
