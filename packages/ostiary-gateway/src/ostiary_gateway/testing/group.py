"""The conformance suite for group providers:

    class TestAcmeGroups(GroupContract):
        @pytest.fixture
        def provider(self) -> AcmeGroups: ...

        @pytest.fixture
        def member(self) -> UserInfo: ...             # is in the group GROUP, and not in OTHER_GROUP

GROUP and OTHER_GROUP are attributes of the class. Set them to groups that exist in the provider's directory.
"""

from __future__ import annotations

import asyncio

import pytest

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.group import GroupProvider, Membership
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect
from ostiary_gateway.testing.capabilities import check_members

REQUEST = LoginRequest(
    method="GET",
    path="/auth",
    callback_url="https://gateway.example.com/auth/acme/groups/provider",
    remote_address="192.0.2.1",
)
# Unusual group names that real directories contain.
STRANGE = frozenset(
    ("a,b", "a|b", "a:b", " a ", "A", "größe", "*", "a/b", "a\\b", "(a)", "a=b", "%2e", "'", '"', "\u202e")
)


class GroupContract:
    """Inherit from this class and provide the fixtures `provider` and `member`."""

    GROUP = "developers"
    OTHER_GROUP = "operators"

    @pytest.fixture
    def provider(self) -> GroupProvider:
        raise NotImplementedError("give the provider to be judged")

    @pytest.fixture
    def member(self) -> UserInfo:
        raise NotImplementedError("give a user who is in GROUP and not in OTHER_GROUP")

    async def test_its_members_are_spelt_and_shaped_as_the_contract_says(self, provider: GroupProvider) -> None:
        check_members("group", provider)

    async def test_a_member_is_in_the_group_and_not_in_another(self, provider: GroupProvider, member: UserInfo) -> None:
        assert await _groups(provider, member, {self.GROUP, self.OTHER_GROUP}) == {self.GROUP}

    async def test_only_groups_that_matter_are_told(self, provider: GroupProvider, member: UserInfo) -> None:
        assert await _groups(provider, member, {self.OTHER_GROUP}) == set()
        assert await _groups(provider, member, set()) == set()

    async def test_each_group_is_told_once(self, provider: GroupProvider, member: UserInfo) -> None:
        groups = await provider.groups_of(member, {self.GROUP}, REQUEST)
        assert isinstance(groups, tuple)
        assert len(groups) == len({membership.group for membership in groups})

    async def test_a_stranger_is_in_no_group(self, provider: GroupProvider) -> None:
        for name in ("nobody-has-this-name", "", "*"):
            assert await _groups(provider, UserInfo(name), {self.GROUP, self.OTHER_GROUP}) == set()

    async def test_names_are_opaque(self, provider: GroupProvider, member: UserInfo) -> None:
        """No name may be shortened, folded or split: a similar name is a different group."""
        alike = {self.GROUP.upper() + "X", f" {self.GROUP}", f"{self.GROUP} ", f"{self.GROUP},{self.OTHER_GROUP}"}
        assert await _groups(provider, member, alike | STRANGE) == set()
        assert await _groups(provider, member, alike | STRANGE | {self.GROUP}) == {self.GROUP}

    async def test_groups_that_a_user_claims_are_not_believed(self, provider: GroupProvider) -> None:
        claimed = UserInfo("nobody-has-this-name", groups=(self.GROUP,))
        assert await _groups(provider, claimed, {self.GROUP}) == set()

    async def test_a_return_that_nobody_began_is_refused(self, provider: GroupProvider, member: UserInfo) -> None:
        with pytest.raises(LoginRefused):
            await provider.groups_from_provider(member, {self.GROUP}, REQUEST)

    async def test_questions_at_the_same_time_do_not_mix(self, provider: GroupProvider, member: UserInfo) -> None:
        stranger = UserInfo("nobody-has-this-name")
        users = [member, stranger] * 10
        answers = await asyncio.gather(*(_groups(provider, user, {self.GROUP}) for user in users))
        assert answers == [{self.GROUP}, set()] * 10


async def _groups(provider: GroupProvider, user: UserInfo, relevant: set[str] | frozenset[str]) -> set[str]:
    memberships = await provider.groups_of(user, frozenset(relevant), REQUEST)
    assert not isinstance(memberships, Redirect), "the suite judges providers that answer at once"
    assert all(isinstance(membership, Membership) for membership in memberships)
    groups = {membership.group for membership in memberships}
    assert groups <= relevant, "only what was asked about may be told"
    return groups
