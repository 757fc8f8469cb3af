"""Groups of claims keep the contract of a group provider, but for the one rule that they are the exception of."""

from __future__ import annotations

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.group import GroupProvider
from ostiary_gateway.providers.claims import ClaimsGroups
from ostiary_gateway.providers.client_certificate import ClientCertificateIdentity
from ostiary_gateway.testing.group import REQUEST, GroupContract


class TestClaimsGroups(GroupContract):
    """S3, S6, S14, S32, S36."""

    @pytest.fixture
    def provider(self) -> GroupProvider:
        return ClaimsGroups()

    @pytest.fixture
    def member(self) -> UserInfo:
        return UserInfo("alice", groups=("developers", "irrelevant"))

    async def test_groups_that_a_user_claims_are_not_believed(self, provider: GroupProvider) -> None:
        """Here it is the identity provider that claims them, and the operator who has chosen to believe it."""
        found = await provider.groups_of(UserInfo("alice", groups=(self.GROUP,)), {self.GROUP}, REQUEST)
        assert isinstance(found, tuple)
        assert [membership.group for membership in found] == [self.GROUP]


class TestGroupsOfAnIdentityProvider(TestClaimsGroups):
    """S6. ``provider: machines`` in place of a type: one object is both."""

    @pytest.fixture
    def provider(self) -> GroupProvider:
        return ClientCertificateIdentity()
