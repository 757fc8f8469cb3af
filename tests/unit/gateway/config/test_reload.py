"""A reload takes up every change but those that are declared otherwise."""

from __future__ import annotations

import pytest

from ostiary.gateway.config import loads
from ostiary.gateway.config.reload import changes_that_need_a_restart
from ostiary.gateway.config.settings import GatewayConfig

PLAIN = """
apiVersion: ostiary.dev/v1
kind: Gateway
identity: [{name: me, type: single_user}]
authorization: {chain: [{name: everything, type: allow_all}]}
"""


def config(more: str = "store: {type: memory}") -> GatewayConfig:
    store = "" if "store:" in more else "store: {type: memory}\n"
    return loads(PLAIN + store + more)


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ("listen: {address: '127.0.0.1:9443'}", ["listen.address"]),
        ("store: {type: sqlite, path: other.db}\nlisten: {workers: 2}", ["listen.workers", "store"]),
        ("health: {address: '127.0.0.1:9444'}", ["health.address"]),
        ("tokens: {lifetime: 5m}", ["tokens"]),
        ("limits: {burst: 7}", ["limits"]),
        ("listen: {drain: 1s, timeouts: {idle: 5s}, limits: {headers: 50}}", []),
        ("log: {level: debug}\naudit: {stdout: true}\nwebhooks: {audiences: [a]}", []),
        ("externalURL: https://gateway.example.com", []),
    ],
)
def test_only_what_is_declared_so_needs_a_restart(more: str, changed: list[str]) -> None:
    assert list(changes_that_need_a_restart(config(), config(more))) == changed


def test_the_same_configuration_needs_none() -> None:
    assert list(changes_that_need_a_restart(config(), config())) == []
