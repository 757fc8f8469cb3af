"""Whom the configured providers can sign in: names with their prefixes, and none of the system's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostiary_gateway.authorization.who_can import NameSource, PossibleSubjects
from ostiary_gateway.config import default_config
from ostiary_gateway.config.accounts import DeclaredAccount, ServiceAccountSettings
from ostiary_gateway.config.provider import Groups, Identity
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.interfaces.group import ListedGroup
from ostiary_gateway.interfaces.identity import Produces


class Listing:
    """An identity and group provider that can list its users and groups, unless it fails."""

    def __init__(self, *groups: ListedGroup, produces: Produces | Exception | None = None) -> None:
        self._groups, self._produces = groups, produces or Produces()

    async def handle_client(self, request: object) -> None: ...

    async def handle_provider(self, request: object) -> None: ...

    async def groups_of(self, user: object, relevant: object, request: object) -> tuple[()]:
        return ()

    async def groups_from_provider(self, user: object, relevant: object, request: object) -> tuple[()]:
        return ()

    def produces(self) -> Produces:
        if isinstance(self._produces, Exception):
            raise self._produces
        return self._produces

    def listed_groups(self) -> tuple[ListedGroup, ...]:
        return self._groups


def possible(provider: Listing, **group: object) -> PossibleSubjects:
    config = replace(
        default_config(),
        identity=(Identity("people", "test", provider, prefix="p:"),),  # type: ignore[arg-type]
        groups=(Groups("teams", "test", provider, prefix="t:", **group),),  # type: ignore[arg-type]
    )
    return PossibleSubjects.from_config(config)


@pytest.mark.parametrize(
    ("name", "names", "can"),
    [
        ("p:alice", None, True),
        ("alice", None, False),
        ("p:", None, False),
        ("p:alice", frozenset({"alice"}), True),
        ("p:bob", frozenset({"alice"}), False),
    ],
)
def test_a_provider_can_produce_names_with_its_prefix(name: str, names: frozenset[str] | None, can: bool) -> None:
    assert NameSource("people", "p:", names).can_produce(name) is can


def test_users_and_groups_are_those_that_the_providers_list() -> None:
    produces = Produces(frozenset({"alice"}), uid=False, extra=("scopes",))
    group, empty = ListedGroup("dev", frozenset({"p:alice"})), ListedGroup("empty", frozenset())
    subjects = possible(Listing(group, empty, produces=produces))
    assert subjects.usernames() == {"p:alice"}
    assert subjects.unlisted == ()
    assert (subjects.uid, subjects.extra) == (False, ("scopes",))
    assert subjects.can_be_group("t:dev")
    assert not subjects.can_be_group("t:empty"), "nobody is in a group without members"
    assert [(member.username, member.group) for member in subjects.members] == [("p:alice", "dev")]


def test_a_provider_that_is_the_identity_provider_too_lists_no_members_of_its_own() -> None:
    assert possible(Listing(ListedGroup("dev", frozenset({"alice"}))), own=True).members == ()


def test_a_provider_that_cannot_list_its_users_can_produce_every_name_with_its_prefix() -> None:
    subjects = possible(Listing(produces=OSError("unreadable")))
    assert subjects.unlisted == ("people",)
    assert subjects.can_be_user("p:anybody")
    assert subjects.usernames() == frozenset()


def test_names_of_the_system_come_from_no_provider() -> None:
    subjects = PossibleSubjects(users=(NameSource("people"),), groups=(NameSource("teams"),))
    assert not subjects.can_be_user("system:admin")
    assert not subjects.can_be_group("system:masters")
    assert subjects.can_be_group("system:authenticated")


def test_a_name_without_its_prefix_is_recognised() -> None:
    subjects = possible(Listing(ListedGroup("dev", frozenset({"p:alice"})), produces=Produces(frozenset({"alice"}))))
    assert subjects.near_user("alice") == "p:alice"
    assert subjects.near_group("dev") == "t:dev"
    assert subjects.near_user("bob") is None


def test_service_accounts_of_the_gateway_are_possible_and_the_declared_ones_are_listed() -> None:
    declared = DeclaredAccount(namespace="shop", name="deployer")
    config = replace(default_config(), service_accounts=ServiceAccountSettings(declared=(declared,)))
    subjects = PossibleSubjects.from_config(config)
    for name, can in (
        ("ostiary:serviceaccount:shop:deployer", True),
        ("ostiary:serviceaccount:shop:made-later", True),
        ("ostiary:serviceaccount:shop", False),
        ("ostiary:admin", False),
    ):
        assert subjects.can_be_user(name) is can
    assert "ostiary:serviceaccount:shop:deployer" in subjects.usernames()
    for name, can in (
        ("ostiary:serviceaccounts", True),
        ("ostiary:serviceaccounts:shop", True),
        ("ostiary:admins", False),
    ):
        assert subjects.can_be_group(name) is can


def test_service_accounts_are_possible_where_a_provider_is_bound_to_the_cluster() -> None:
    class Bound(Listing):
        bound_cluster = "main"

    for provider, can in ((Listing(), False), (Bound(), True)):
        subjects = possible(provider)
        assert subjects.can_be_user("system:serviceaccount:shop:deployer") is can
        assert subjects.can_be_group("system:serviceaccounts:shop") is can
        assert subjects.can_be_service_account(Subject("ServiceAccount", "deployer", namespace="shop")) is can
        assert subjects.can_be_service_account(Subject("Group", "system:serviceaccounts")) is can
        assert subjects.can_be_service_account(Subject("User", "system:serviceaccount:shop:deployer")) is can
        for name in ("system:masters", "system:serviceaccount:shop", "system:node:one"):
            assert not subjects.can_be_user(name)
            assert not subjects.can_be_group(name)
            assert not subjects.can_be_service_account(Subject("User", name))
