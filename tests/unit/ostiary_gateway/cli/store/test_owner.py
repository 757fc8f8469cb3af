"""Stores that know which gateway they belong to, and which replicas use them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ostiary_gateway.replicas.registry import TOPIC
from ostiary_gateway.replicas.replica import Replica, encode_replica
from tests.support.gateway import GatewayFolder
from tests.support.noting_store import ENTRY_POINTS, NotingStore
from tests.unit.ostiary_gateway.acme import install
from tests.unit.ostiary_gateway.cli.store.stores import Captured, alive, run, run_json, sign_in

ONE, OTHER = "https://one.example.com", "https://other.example.com"


@pytest.fixture(autouse=True)
def noting(site: GatewayFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gateways, one of which moves from ``tokens.db`` to ``new.db``, and stores that know their owner."""
    install(tmp_path / "packages", monkeypatch, ENTRY_POINTS, package="noting")
    old, new = ({"type": "noting", "path": file} for file in ("tokens.db", "new.db"))
    site.write_config("gateway.yaml", store=old, externalURL=ONE)
    site.write_config("new.yaml", store=new, externalURL=ONE)
    site.write_config("other.yaml", store=old, externalURL=OTHER)
    site.write_config("other-new.yaml", store=new, externalURL=OTHER)
    site.write_config("nameless.yaml", store=old)


def error_of(capsys: Captured, *arguments: str) -> dict[str, str]:
    code, _, err = run(capsys, *arguments, "-o", "json")
    assert code == 1
    error: dict[str, str] = json.loads(err)["error"]
    return error


# --- check ---


def test_a_store_of_nobody_belongs_to_the_first_gateway_that_checks_it(capsys: Captured) -> None:
    sign_in("ann")
    assert run_json(capsys, "check", "--config", "nameless.yaml")[1]["gateway"] is None
    assert run_json(capsys, "check")[1]["gateway"] == ONE
    code, said = run_json(capsys, "check", "--config", "other.yaml")
    assert (code, said["gateway"]) == (1, ONE)
    hint = "if that is this gateway under an older URL: --take-over"
    assert said["problems"] == [f"it belongs to the gateway {ONE}, and this is {OTHER} ({hint})"]
    assert f"gateway      {ONE}" in run(capsys, "check")[1]


def test_a_gateway_takes_a_store_over_on_purpose(capsys: Captured) -> None:
    sign_in("ann")
    run(capsys, "check")
    code, said = run_json(capsys, "check", "--config", "other.yaml", "--take-over")
    assert (code, said["gateway"]) == (0, OTHER)
    assert run(capsys, "check")[0] == 1


def test_taking_over_needs_a_gateway_with_a_name_and_a_store_with_an_owner(
    capsys: Captured, site: GatewayFolder
) -> None:
    sign_in("ann")
    error = error_of(capsys, "check", "--config", "nameless.yaml", "--take-over")
    assert error["cause"] == "it has no externalURL"
    site.write_config("sqlite.yaml", externalURL=ONE)
    code, _, err = run(capsys, "check", "--config", "sqlite.yaml", "--take-over")
    assert code == 2
    assert "has no owner" in err


# --- migrate and after-restore ---


def test_the_target_belongs_to_the_gateway_afterwards(capsys: Captured) -> None:
    sign_in("ann")
    assert run(capsys, "migrate", "gateway.yaml", "new.yaml")[0] == 0
    assert run_json(capsys, "check", "--config", "new.yaml")[1]["gateway"] == ONE
    assert run(capsys, "check", "--config", "other-new.yaml")[0] == 1


@pytest.mark.parametrize("pair", [("gateway.yaml", "new.yaml"), ("gateway.yaml", "other-new.yaml")])
def test_sessions_of_another_gateway_are_neither_taken_nor_replaced(capsys: Captured, pair: tuple[str, str]) -> None:
    issued = sign_in("ann")
    owned, claiming = ("tokens.db", "other.yaml") if pair[1] == "new.yaml" else ("new.db", "new.yaml")
    sign_in("bob", file=owned)
    run(capsys, "check", "--config", claiming)
    error = error_of(capsys, "migrate", *pair, "--replace")
    assert error["code"] == "token-store-of-another-gateway"
    assert alive(issued, file="new.db") == [False]


def test_what_is_refused_or_only_tried_claims_nothing(capsys: Captured) -> None:
    sign_in("ann")
    sign_in("bob", file="new.db")
    for arguments in ((), ("--dry-run",), ("--dry-run", "--replace")):
        run(capsys, "migrate", "other.yaml", "other-new.yaml", *arguments)
    for config in ("gateway.yaml", "new.yaml"):
        assert run_json(capsys, "check", "--config", config)[1]["gateway"] == ONE


def test_sessions_of_another_gateway_do_not_end(capsys: Captured) -> None:
    issued = sign_in("ann")
    run(capsys, "check")
    assert error_of(capsys, "after-restore", "--config", "other.yaml")["code"] == "token-store-of-another-gateway"
    assert alive(issued, file="tokens.db") == [True]


async def _write_note(replica: Replica) -> None:
    store = NotingStore("tokens.db")
    await store.put_notes(TOPIC, {replica.id: encode_replica(replica)}, seconds=60)
    await store.close()


def test_a_replica_that_uses_the_store_from_another_machine_is_named(capsys: Captured) -> None:
    sign_in("ann")
    asyncio.run(_write_note(Replica(id="1", host="node-7", pid=4711)))
    error = error_of(capsys, "migrate", "gateway.yaml", "new.yaml")
    assert (error["code"], error["cause"]) == ("store-in-use", "it is open in: replica node-7 (process 4711)")
    assert run_json(capsys, "check")[1]["usedBy"] == ["replica node-7 (process 4711)"]
    assert run(capsys, "migrate", "gateway.yaml", "new.yaml", "--running")[0] == 0
