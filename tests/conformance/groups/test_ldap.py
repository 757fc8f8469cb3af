"""A directory keeps the contract of a group provider, with nested groups and without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import trustme

pytest.importorskip("ldap", reason="missing: python-ldap")

from ostiary.model import UserInfo
from ostiary_gateway.providers.ldap.groups import LdapGroups
from ostiary_gateway.providers.ldap.settings import GroupSearch, Nested
from ostiary_gateway.testing.group import GroupContract
from tests.support.slapd import GROUPS_BASE, Slapd, slapd


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[Slapd]:
    with slapd(tmp_path_factory.mktemp("slapd"), ca) as server:
        yield server


@pytest.mark.needs("slapd", "slapadd")
class TestLdapGroups(GroupContract):
    """S3, S14, S32, L8."""

    NESTED = Nested.NONE

    @pytest.fixture
    async def provider(self, directory: Slapd) -> AsyncIterator[LdapGroups]:
        provider = LdapGroups(directory.settings(groups=GroupSearch(GROUPS_BASE, nested=self.NESTED)))
        yield provider
        await provider.close()

    @pytest.fixture
    def member(self) -> UserInfo:
        return UserInfo("alice")


class TestLdapGroupsInGroups(TestLdapGroups):
    """S14, L8."""

    GROUP = "everybody"
    NESTED = Nested.RECURSIVE
