"""The sections about programs: names as Kubernetes has them, and lifetimes that go together."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import loads, warnings
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.stores.memory import MemoryTokenStore


def config(**sections: Any) -> GatewayConfig:
    whole = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
        **sections,
    }
    return loads(json.dumps(whole))


def problems(**sections: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        config(**sections)
    return [f"{problem.place.path}: {problem.message}" for problem in raised.value.problems]


def declared(*names: str) -> dict[str, Any]:
    accounts = [dict(zip(("namespace", "name"), name.split("/"), strict=True)) for name in names]
    return {"serviceAccounts": {"declared": accounts}}


def test_left_out_there_are_no_accounts_and_no_api_tokens() -> None:
    made = config()
    assert made.service_accounts.declared == ()
    assert not made.api_tokens.enabled
    assert made.api_tokens.unchecked_lifetime == timedelta(days=7)


def test_accounts_are_declared_by_namespace_and_name() -> None:
    made = config(**declared("shop/deployer", "shop/a.b", "other/deployer"))
    assert [str(each.account_name) for each in made.service_accounts.declared] == [
        *("shop/deployer", "shop/a.b", "other/deployer")
    ]


def test_a_name_that_kubernetes_would_not_give_is_a_mistake(subtests: pytest.Subtests) -> None:
    for name in ["Shop/deployer", "a.b/deployer", "shop/Deployer", "shop/a:b", "shop/-a", "shop/a\n"]:
        with subtests.test(name=name):
            (problem,) = problems(**declared(name))
            assert "it is not the name of a" in problem


def test_the_same_account_twice_is_a_mistake() -> None:
    assert problems(**declared("shop/a", "other/a", "shop/a")) == [
        "serviceAccounts.declared[2].name: duplicate name in this namespace"
    ]


@pytest.mark.parametrize("section", ["serviceAccounts", "apiTokens"])
def test_the_usual_lifetime_is_not_longer_than_the_longest(section: str) -> None:
    (problem,) = problems(**{section: {"lifetime": "3h", "longestLifetime": "2h"}})
    assert problem == f"{section}.lifetime: it is longer than longestLifetime"


def test_no_provider_may_have_a_prefix_of_the_gateways_own() -> None:
    identity = [{"name": "me", "type": "single_user", "prefix": "ostiary:serviceaccount:"}]
    assert any("users of the gateway itself" in problem for problem in problems(identity=identity))


class AsksNobody:
    """An identity provider that cannot be asked again about a user."""

    async def handle_client(self, request: object) -> None: ...

    async def handle_provider(self, request: object) -> None: ...


def test_api_tokens_whose_owner_cannot_be_checked_again_are_warned_of() -> None:
    enabled = config(apiTokens={"enabled": True, "uncheckedLifetime": "48h"})
    assert not any("API tokens" in warning for warning in warnings(enabled))
    unchecked = replace(enabled, identity=(Identity("sso", "test", AsksNobody()),))  # type: ignore[arg-type]
    (warning,) = [each for each in warnings(unchecked) if "API tokens" in each]
    assert warning.startswith('identity "sso" cannot check users again: their API tokens live for 48h at most')


def test_a_store_without_objects_is_warned_of() -> None:
    class WithoutObjects(MemoryTokenStore):
        put_object = None  # type: ignore[assignment]

    made = config()
    assert not any("keeps no objects" in warning for warning in warnings(made))
    without = replace(made, store=replace(made.store, instance=WithoutObjects()))
    assert any("serviceAccounts.declared" in warning for warning in warnings(without))
