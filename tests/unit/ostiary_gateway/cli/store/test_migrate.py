"""``ostiary-gateway store migrate`` from one configuration's store to another's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.gateway import GatewayFolder
from tests.support.open_store import opened_elsewhere
from tests.unit.ostiary_gateway.cli.store.stores import (
    Captured,
    alive,
    objects_in,
    put_object,
    revoke,
    run,
    run_json,
    sign_in,
)

PAIR = ("gateway.yaml", "new.yaml")

NO_OBJECTS = {"missing": 0, "changed": 0, "foreign": 0}

pytestmark = pytest.mark.usefixtures("site")


def test_sessions_are_moved_and_what_was_revoked_stays_behind(capsys: Captured) -> None:
    issued = sign_in("ann", "bob", "eve")
    revoke("bob")
    code, out, err = run(capsys, "migrate", *PAIR)
    assert code == 0, err
    first, same, not_moved = out.splitlines()
    assert first.startswith("2 sessions written (")
    assert same == "both stores have the same content: 2 sessions with 4 tokens, revocations up to number 1"
    assert not_moved == "not moved: logins in progress, rate limit counters, the list of replicas"
    assert "new.db is new: make sure that the user of the gateway can write to it" in err
    assert alive(issued, file="new.db") == [True, False, True]
    assert alive(issued, file="tokens.db") == [True, False, True], "the source stays as it is"


def test_moving_again_writes_nothing_and_says_nothing_of_a_new_file(capsys: Captured) -> None:
    sign_in("ann")
    assert run(capsys, "migrate", *PAIR)[0] == 0
    code, out, err = run(capsys, "migrate", *PAIR)
    assert (code, err) == (0, "")
    assert out.startswith("0 sessions written (")


def test_a_dry_run_changes_nothing(capsys: Captured) -> None:
    sign_in("ann")
    run(capsys, "migrate", *PAIR)
    issued = sign_in("bob")
    assert run(capsys, "migrate", *PAIR, "--dry-run")[:2] == (
        0,
        "2 sessions with 4 tokens, revocations up to number 0\n1 session to copy\n",
    )
    assert alive(issued, file="new.db") == [False]
    code, said = run_json(capsys, "migrate", *PAIR, "--dry-run")
    assert code == 0
    assert (said["dryRun"], said["written"], said["same"]) == (True, 0, False)
    assert said["before"] == {"missing": 1, "changed": 0, "ended": 0, "foreign": 0, "log": False, "objects": NO_OBJECTS}


def test_a_dry_run_does_not_make_the_file_that_it_would_fill(capsys: Captured) -> None:
    sign_in("ann")
    code, _, err = run(capsys, "migrate", *PAIR, "--dry-run")
    assert code == 1
    assert "new.db does not exist" in err
    assert not Path("new.db").exists()


def test_a_program_gets_json(capsys: Captured) -> None:
    sign_in("ann")
    code, said = run_json(capsys, "migrate", *PAIR)
    assert code == 0
    assert said.pop("seconds") >= 0
    same = {"missing": 0, "changed": 0, "ended": 0, "foreign": 0, "log": False, "objects": NO_OBJECTS}
    assert said == {
        "dryRun": False,
        "sessions": 1,
        "tokens": 2,
        "revocation": 0,
        "objects": 0,
        "before": {**same, "missing": 1},
        "written": 1,
        "objectsWritten": 0,
        "same": True,
        "differences": same,
    }


# --- objects ---


def test_objects_are_moved_and_changes_follow(capsys: Captured) -> None:
    sign_in("ann")
    put_object("signing-key", "k1")
    put_object("service-account", "a", b"one")
    code, out, err = run(capsys, "migrate", *PAIR, "--running")
    assert code == 0, err
    assert "2 objects written or deleted\n" in out
    assert "both stores have the same content: 1 session with 2 tokens, 2 objects, revocations up to number 0" in out
    put_object("service-account", "a", b"two")
    put_object("service-account", "b")
    assert "2 objects to copy" in run(capsys, "migrate", *PAIR, "--dry-run")[1]
    code, said = run_json(capsys, "migrate", *PAIR)
    assert (code, said["written"], said["objectsWritten"], said["same"]) == (0, 0, 2, True)
    assert said["before"]["objects"] == {"missing": 1, "changed": 1, "foreign": 0}
    assert objects_in("new.db") == objects_in("tokens.db")
    assert objects_in("new.db")["service-account", "a"] == b"two"


def test_objects_that_only_the_target_has_are_not_deleted_unasked(capsys: Captured) -> None:
    sign_in("ann")
    put_object("service-account", "a")
    put_object("service-account", "theirs", file="new.db")
    code, _, err = run(capsys, "migrate", *PAIR)
    assert code == 1
    assert "the target holds objects of its own" in err
    assert list(objects_in("new.db")) == [("service-account", "theirs")]
    assert run(capsys, "migrate", *PAIR, "--replace")[0] == 0
    assert list(objects_in("new.db")) == [("service-account", "a")]


# --- in use ---


@pytest.mark.parametrize("file", ["tokens.db", "new.db"])
def test_a_store_that_another_process_has_open_is_not_moved(capsys: Captured, tmp_path: Path, file: str) -> None:
    issued = sign_in("ann")
    with opened_elsewhere(tmp_path / file) as other:
        code, out, err = run(capsys, "migrate", *PAIR, "-o", "json")
    assert (code, out) == (1, "")
    error = json.loads(err)["error"]
    assert error["code"] == "store-in-use"
    assert error["hint"].startswith("stop the gateways first; ")
    assert ("add --running" in error["hint"]) is (file == "tokens.db")
    assert f"process {other.pid} " in error["cause"]
    assert alive(issued, file="new.db") == [False]


def test_a_source_in_use_is_copied_ahead_if_that_is_asked_for(capsys: Captured, tmp_path: Path) -> None:
    issued = sign_in("ann")
    with opened_elsewhere(tmp_path / "tokens.db"):
        code, _, err = run(capsys, "migrate", *PAIR, "--running")
    assert code == 0
    assert "run it again without --running once the gateways have stopped" in err
    assert alive(issued, file="new.db") == [True]


def test_a_target_in_use_is_refused_in_any_case(capsys: Captured, tmp_path: Path) -> None:
    sign_in("ann")
    with opened_elsewhere(tmp_path / "new.db"):
        assert run(capsys, "migrate", *PAIR, "--running", "--replace")[0] == 1


# --- the other store ---


def test_a_target_with_sessions_of_its_own_is_refused_unless_they_may_end(capsys: Captured) -> None:
    issued = sign_in("ann")
    own = sign_in("bob", file="new.db")
    code, _, err = run(capsys, "migrate", *PAIR)
    assert code == 1
    assert "the target holds sessions of its own" in err
    assert "store-not-empty" in err
    assert alive([*issued, *own], file="new.db") == [False, True], "nothing was changed"
    assert run(capsys, "migrate", *PAIR, "--replace")[0] == 0
    assert alive([*issued, *own], file="new.db") == [True, False]


def test_a_session_that_was_ended_since_the_first_run_ends_in_the_target(capsys: Captured) -> None:
    issued = sign_in("ann", "bob")
    run(capsys, "migrate", *PAIR)
    revoke("ann")
    code, out, _ = run(capsys, "migrate", *PAIR)
    assert code == 0
    assert out.startswith("1 session written")
    assert alive(issued, file="new.db") == [False, True]


def test_and_back_again(capsys: Captured) -> None:
    """The old file still has a session that was revoked in the new store."""
    issued = sign_in("ann", "bob")
    run(capsys, "migrate", *PAIR)
    revoke("bob", file="new.db")
    new = sign_in("eve", file="new.db")
    code, _, err = run(capsys, "migrate", "new.yaml", "gateway.yaml")
    assert code == 0, err
    assert alive([*issued, *new], file="tokens.db") == [True, False, True]


@pytest.mark.parametrize("path", ["tokens.db", "./tokens.db", "link.db"])
def test_a_store_is_not_moved_to_itself(capsys: Captured, site: GatewayFolder, path: str) -> None:
    sign_in("ann")
    Path("link.db").symlink_to("tokens.db")
    site.write_config("same.yaml", store={"type": "sqlite", "path": path})
    code, _, err = run(capsys, "migrate", "gateway.yaml", "same.yaml")
    assert code == 1
    assert "both configurations name the same store" in err


@pytest.mark.parametrize("pair", [("memory.yaml", "new.yaml"), ("gateway.yaml", "memory.yaml")])
def test_a_store_in_memory_cannot_be_moved(capsys: Captured, site: GatewayFolder, pair: tuple[str, str]) -> None:
    sign_in("ann")
    site.write_config("memory.yaml", store={"type": "memory"})
    code, _, err = run(capsys, "migrate", *pair)
    assert code == 1
    assert "store-not-movable" in err


def test_a_source_that_does_not_exist_is_not_made(capsys: Captured) -> None:
    code, _, err = run(capsys, "migrate", *PAIR)
    assert code == 1
    assert "there is no token store yet" in err
    assert not Path("tokens.db").exists()
    assert not Path("new.db").exists()


# --- the command line ---


def test_a_dry_run_needs_no_leave_to_run_beside_gateways(capsys: Captured) -> None:
    assert run(capsys, "migrate", *PAIR, "--dry-run", "--running")[0] == 2


def test_both_configurations_are_needed(capsys: Captured) -> None:
    assert run(capsys, "migrate", "gateway.yaml")[0] == 2


def test_the_help_says_what_to_do_first(capsys: Captured) -> None:
    code, out, _ = run(capsys, "migrate", "--help")
    assert code == 0
    assert "Stop the gateways." in out
    assert "Logins in progress" in out
