"""``ostiary-gateway status`` on the store of a configuration: the table, the notes below it, and the exit code."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ostiary_gateway.cli import main
from ostiary_gateway.replicas.registry import TOPIC
from ostiary_gateway.replicas.replica import Replica, encode_replica
from tests.support.noting_store import ENTRY_POINTS, NotingStore
from tests.unit.ostiary_gateway import acme

Captured = pytest.CaptureFixture[str]
GOOD = Replica(
    id="0123456789abcdef",
    host="node-a",
    pid=41,
    version="1.0",
    configuration="c0ffee",
    configuration_key="k",
    configured_seconds=200.0,
    up_seconds=7300.0,
    revocation=7,
    head=7,
    confirmed_seconds=0.4,
    max_stale=5.0,
    requests_per_second=12.5,
    in_flight=3,
    open_streams=2,
    tokens=9,
    workers=2,
)
CONFIG = {
    "apiVersion": "ostiary.dev/v1",
    "kind": "Gateway",
    "store": {"type": "noting", "path": "tokens.db"},
    "identity": [{"name": "me", "type": "single_user"}],
    "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    acme.install(tmp_path / "packages", monkeypatch, ENTRY_POINTS, package="noting")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gateway.yaml").write_text(json.dumps(CONFIG))
    return tmp_path


def note(folder: Path, *replicas: Replica) -> None:
    async def work() -> None:
        store = NotingStore(str(folder / "tokens.db"))
        await store.put_notes(TOPIC, {each.id: encode_replica(each) for each in replicas}, seconds=60)
        await store.close()

    asyncio.run(work())


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["status", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_replicas_that_are_all_well_are_listed(capsys: Captured, folder: Path) -> None:
    note(folder, GOOD, replace(GOOD, id="b", host="node-b", up_seconds=59.0))
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    header, *rows = out.splitlines()
    assert header.split() == ["NAME", "VERSION", "CONFIG", "REVOKED", "LAG", "RATE", "READY", "AGE"]
    assert rows[0].split() == ["node-a", "1.0", "same", "7", "0.4s", "12.5/s", "3+2", "yes", "2h"]
    assert rows[1].split()[-1] == "59s"


def test_wide_shows_hash_workers_and_process(capsys: Captured, folder: Path) -> None:
    note(folder, GOOD)
    header, row = run(capsys, "-o", "wide")[1].splitlines()
    assert header.split()[8:] == ["HASH", "LOADED", "WORKERS", "TOKENS", "PID", "ID"]
    assert row.split()[9:] == ["c0ffee", "3m", "2", "9", "41", "0123456789abcdef"]


def test_json_is_the_object_of_the_api(capsys: Captured, folder: Path) -> None:
    note(folder, GOOD)
    value = json.loads(run(capsys, "-o", "json")[1])
    assert value["kind"] == "ReplicaList"
    assert value["items"][0]["load"] == {"requestsPerSecond": 12.5, "inFlight": 3, "openStreams": 2, "tokens": 9}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"configuration": "other", "configured_seconds": 900.0}, "node-b has another configuration than most"),
        ({"trouble": "token store: unavailable"}, "node-b is not ready: token store: unavailable"),
        ({"confirmed_seconds": 5.5}, "node-b is not ready: revocations are not confirmed"),
    ],
)
def test_a_replica_that_needs_attention_is_named_and_fails_the_command(
    capsys: Captured, folder: Path, bad: dict[str, object], said: str
) -> None:
    note(folder, GOOD, replace(GOOD, id="b", host="node-b", **bad))  # type: ignore[arg-type]
    code, _, err = run(capsys)
    assert code == 1
    assert said in err
    assert "node-a" not in err


def test_several_versions_are_told_and_are_no_failure(capsys: Captured, folder: Path) -> None:
    note(folder, GOOD, replace(GOOD, id="b", host="node-b", version="2.0"))
    code, _, err = run(capsys)
    assert (code, "several versions" in err) == (0, True)


def test_a_replica_that_is_behind_shows_by_how_much(capsys: Captured, folder: Path) -> None:
    note(
        folder,
        GOOD,
        replace(GOOD, id="b", host="node-b", revocation=5),
        replace(GOOD, id="c", host="node-c", revocation=None),
    )
    _, behind, unknown = run(capsys)[1].splitlines()[1:]
    assert "5 (-2)" in behind
    assert unknown.split()[3:5] == ["-", "-"]


def test_without_any_replica_it_fails(capsys: Captured, folder: Path) -> None:
    note(folder)
    code, out, _ = run(capsys)
    assert (code, out) == (1, "no replica is running: none has reported to the token store in the last minute\n")
