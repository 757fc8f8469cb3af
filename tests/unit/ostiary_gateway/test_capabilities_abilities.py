"""Abilities and traits: found without evaluating anything, and False where they are not declared."""

from __future__ import annotations

import pytest

from ostiary.model import UserInfo
from ostiary_gateway import catalog
from ostiary_gateway.capabilities import ABILITIES, CONTRACTS, TRAITS, ability, describe, has_trait, members
from ostiary_gateway.interfaces.authorization import DecidesAtOnce, Revised
from ostiary_gateway.interfaces.identity import Revalidates
from ostiary_gateway.interfaces.token_store import RecordStore, SharedBetweenProcesses


class Revalidating:
    async def revalidate(self, user: UserInfo) -> UserInfo:
        return user


class Wrapper:
    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_every_type_of_plugin_has_a_contract_and_a_row_in_each_table() -> None:
    assert set(CONTRACTS) == set(ABILITIES) == set(TRAITS) == set(catalog.TYPES)


def test_every_ability_and_trait_can_be_checked_by_isinstance_and_says_what_it_means() -> None:
    for protocol in {each for table in (ABILITIES, TRAITS) for protocols in table.values() for each in protocols}:
        assert getattr(protocol, "_is_runtime_protocol", False), protocol
        assert protocol.__doc__, protocol


def test_a_trait_is_one_bool() -> None:
    for protocol in (each for protocols in TRAITS.values() for each in protocols):
        assert [protocol.__annotations__[name] for name in members(protocol)] == ["bool"], protocol


def test_an_ability_is_found_by_its_methods() -> None:
    provider = Revalidating()
    assert ability(provider, Revalidates) is provider
    assert ability(object(), Revalidates) is None


def test_an_ability_in_the_instance_counts() -> None:
    provider = type("Late", (), {})()
    assert ability(provider, DecidesAtOnce) is None
    provider.decide = lambda attributes: None
    assert ability(provider, DecidesAtOnce) is provider


def test_an_ability_that_is_none_is_switched_off() -> None:
    assert ability(type("Off", (Revalidating,), {"revalidate": None})(), Revalidates) is None


def test_a_part_of_an_ability_is_none() -> None:
    assert ability(type("Partial", (), {"put_record": print, "find_record": print})(), RecordStore) is None


def test_a_wrapper_has_the_abilities_of_what_it_wraps() -> None:
    assert ability(Wrapper(Revalidating()), Revalidates) is not None
    assert ability(Wrapper(object()), Revalidates) is None


def test_a_property_is_not_evaluated() -> None:
    class Failing:
        @property
        def revision(self) -> int:
            raise OSError("the policy cannot be read")

    assert ability(Failing(), Revised) is not None


@pytest.mark.parametrize("value", [None, 0, 1, "yes", False])
def test_a_trait_is_true_only_if_it_is_declared_as_true(value: object) -> None:
    assert not has_trait(type("Store", (), {"shared_between_processes": value})(), SharedBetweenProcesses)


def test_a_trait_may_be_a_property() -> None:
    store = type("Store", (), {"shared_between_processes": property(lambda self: True)})()
    assert has_trait(store, SharedBetweenProcesses)
    assert not has_trait(object(), SharedBetweenProcesses)


def test_a_class_is_described_by_its_abilities_and_traits() -> None:
    class Store:
        shared_between_processes = True
        survives_restart = property(lambda self: True)
        path: str

    description = describe("token_store", Store)
    assert description.abilities == ("path",)
    assert description.traits == {"shared_between_processes": True, "survives_restart": None}
