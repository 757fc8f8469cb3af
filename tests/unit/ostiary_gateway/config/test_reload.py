"""A reload takes up every change but those that are declared otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pytest

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.catalog import Context
from ostiary_gateway.config import loads
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.reload import changes_that_need_a_restart
from ostiary_gateway.stores.memory import MemoryTokenStore
from tests.unit.ostiary_gateway.acme import install

PLAIN = """
apiVersion: ostiary.dev/v1
kind: Gateway
identity: [{name: me, type: single_user}]
authorization: {chain: [{name: everything, type: allow_all}]}
"""


def config(more: str = "store: {type: memory}") -> GatewayConfig:
    store = "" if "store:" in more else "store: {type: memory}\n"
    return loads(PLAIN + store + more)


def test_only_what_is_declared_so_needs_a_restart(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[str]]] = [
        ("listen: {address: '127.0.0.1:9443'}", ["listen.address"]),
        ("store: {type: sqlite, path: other.db}\nlisten: {workers: 2}", ["listen.workers", "store"]),
        ("health: {address: '127.0.0.1:9444'}", ["health.address"]),
        ("listen: {grpc: {address: '127.0.0.1:9445'}}", ["listen.grpc"]),
        ("tokens: {lifetime: 5m}", ["tokens"]),
        ("limits: {burst: 7}", ["limits"]),
        ("listen: {drain: 1s, timeouts: {idle: 5s}, limits: {headers: 50}}", []),
        ("log: {level: debug}\naudit: {stdout: true}\nwebhooks: {audiences: [a]}", []),
        ("externalURL: https://gateway.example.com", []),
    ]
    for more, changed in cases:
        with subtests.test(more=more, changed=changed):
            assert list(changes_that_need_a_restart(config(), config(more))) == changed


def test_the_same_configuration_needs_none() -> None:
    assert list(changes_that_need_a_restart(config(), config())) == []


# --- the store ---


def sqlite(settings: str) -> GatewayConfig:
    return config(f"store: {{type: sqlite, {settings}}}")


def test_a_store_is_the_same_however_its_settings_are_written() -> None:
    assert list(changes_that_need_a_restart(sqlite("path: tokens.db"), sqlite("path: ./tokens.db"))) == []
    assert list(changes_that_need_a_restart(loads(PLAIN), sqlite("path: ostiary.db"))) == [], "the default, written out"
    assert list(changes_that_need_a_restart(sqlite("path: tokens.db"), sqlite("path: other.db"))) == ["store"]


class HostedStore(MemoryTokenStore):
    """A store of a package that declares no settings."""

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        fields.ignore("host", "schema")
        return super().from_config(fields, context)


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ("{type: hosted, host: db-1, schema: a}", []),
        ("{schema: a, host: db-1, type: hosted}", []),
        ("{type: hosted, host: db-2, schema: a}", ["store"]),
        ("{type: hosted, host: db-1, schema: b}", ["store"]),
        ("{type: hosted, host: db-1}", ["store"]),
    ],
)
def test_another_host_or_schema_is_another_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: str, changed: list[str]
) -> None:
    install(tmp_path, monkeypatch, f"[ostiary.token_store]\nhosted = {__name__}:HostedStore\n")
    old = config("store: {type: hosted, host: db-1, schema: a}")
    assert list(changes_that_need_a_restart(old, config(f"store: {settings}"))) == changed
