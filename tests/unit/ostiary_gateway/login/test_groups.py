"""Which groups a token attests: relevant ones only, from every provider that knows the user."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.config.provider import Groups
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import Challenge
from tests.unit.ostiary_gateway.signing_in import (
    URL,
    Make,
    Says,
    SaysGroups,
    body,
    members,
    nobody_came_in,
    session_of,
)


async def test_groups_are_asked_right_after_identity_and_about_relevant_ones_only(make: Make) -> None:
    """S11, S32, S34, S35."""
    asked = SaysGroups(members("developers"))
    gateway = make(Says(UserInfo("alice", groups=("claimed",))), groups=[asked])
    assert body(await gateway.get())["groups"] == ["developers"]
    ((user, relevant, request),) = asked.asked
    assert (user.username, relevant) == ("alice", {"developers", "operators"})
    assert request.callback_url == f"{URL}/auth/idp1/groups/provider"


async def test_what_is_not_relevant_is_in_no_token(make: Make) -> None:
    """S36."""
    own = "ostiary:serviceaccounts:shop"
    everything = SaysGroups(members("developers", "choir", "system:masters", own))
    relevant = frozenset({"developers", "system:masters", own})
    gateway = make(Says(UserInfo("alice")), groups=[everything], relevant=relevant)
    assert body(await gateway.get())["groups"] == ["developers"]
    assert everything.asked[0][1] == {"developers"}
    gateway.relevant = frozenset({"developers", "choir"})
    assert body(await gateway.get())["groups"] == ["developers", "choir"]


async def test_where_nothing_is_relevant_nobody_is_asked(make: Make) -> None:
    asked = SaysGroups(members("developers"))
    gateway = make(Says(UserInfo("alice")), groups=[asked], relevant=frozenset())
    assert body(await gateway.get())["groups"] == []
    assert asked.asked == []


class ChecksAccounts(SaysGroups):
    """Knows accounts as well."""

    said: Exception | None = None

    async def check_user(self, user: UserInfo) -> None:
        if self.said is not None:
            raise self.said


@pytest.mark.parametrize("relevant", [frozenset({"developers"}), frozenset()])
async def test_whoever_has_no_account_at_the_group_provider_is_refused_whatever_matters(
    make: Make, relevant: frozenset[str]
) -> None:
    """S64."""
    directory = ChecksAccounts(members("developers"))
    gateway = make(Says(UserInfo("alice")), groups=[directory], relevant=relevant)
    issued = body(await gateway.get())
    session = await session_of(gateway, issued)
    assert session.expires_at - session.created_at == timedelta(hours=24), "somebody is asked, so it need not be short"
    directory.said = LoginRefused("this account is disabled or has expired")
    renewal = gateway.post("/auth/renew", renewal_token=issued["renewal_token"])
    for answer, status in ((await gateway.get(), 403), (await renewal, 401)):
        assert (answer.status, answer.message) == (status, "this account is disabled or has expired")
    directory.said = ProviderError("the directory does not answer")
    assert (await gateway.get()).status == 503


async def test_a_group_provider_checks_only_users_of_its_identities(make: Make) -> None:
    directory = ChecksAccounts(members("developers"))
    directory.said = LoginRefused("no")
    elsewhere = Groups("g1", "test", directory, identities=("another",))
    gateway = make(Says(UserInfo("alice")), groups=[elsewhere])
    session = await session_of(gateway, body(await gateway.get()))
    assert session.expires_at - session.created_at == timedelta(hours=1)


async def test_several_group_providers_add_up_and_say_how_they_know(make: Make) -> None:
    one = SaysGroups((Membership("developers", "nested"),))
    two = SaysGroups(members("operators", "developers"))
    told = body(await make(Says(UserInfo("alice")), groups=[one, two]).get())
    assert told["groups"] == ["developers", "operators"]
    assert told["sources"] == {"developers": "g1: nested", "operators": "g2"}


async def test_a_prefix_keeps_the_groups_of_two_directories_apart(make: Make) -> None:
    provider = SaysGroups(members("admins", "corp:admins", ""))
    groups = [Groups("corp", "test", provider, prefix="corp:")]
    gateway = make(Says(UserInfo("alice")), groups=groups, relevant=frozenset({"admins", "corp:admins", "corp:"}))
    assert body(await gateway.get())["groups"] == ["corp:admins"]
    assert provider.asked[0][1] == {"admins"}


async def test_a_group_provider_is_asked_about_the_users_it_is_for(make: Make) -> None:
    only = SaysGroups(members("developers"))
    gateway = make(
        Says(UserInfo("alice")), Says(UserInfo("alice")), groups=[Groups("g", "test", only, identities=("idp2",))]
    )
    assert body(await gateway.get("/auth/idp1"))["groups"] == []
    assert body(await gateway.get("/auth/idp2"))["groups"] == ["developers"]
    assert [user.username for user, _, _ in only.asked] == ["idp2:alice"]


@pytest.mark.parametrize("relevant", [RuntimeError("x"), ProviderError("policy is gone"), None, ["a"], frozenset({1})])
async def test_without_the_relevant_groups_nobody_signs_in(make: Make, relevant: Any) -> None:
    """S37."""
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups()], relevant=relevant)
    answer = await gateway.get()
    assert answer.status in (500, 503)
    await nobody_came_in(gateway, answer)
    assert len(gateway.events) == 1
    assert gateway.events[0].reason


@pytest.mark.parametrize(
    "said", [None, "developers", ("developers",), UserInfo("a"), Challenge("Basic"), {"developers"}]
)
async def test_a_group_provider_that_breaks_its_contract_closes_the_door(make: Make, said: Any) -> None:
    """S37."""
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups(members("developers")), SaysGroups(said)])
    answer = await gateway.get()
    assert answer.status == 500
    await nobody_came_in(gateway, answer)
    assert f"it answered with {type(said).__name__} instead of memberships" in gateway.events[0].reason
