"""A directory keeps the contract of an identity provider, by a search and by a template of names."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Iterator

import pytest
import trustme

pytest.importorskip("ldap", reason="missing: python-ldap")

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.ldap.identity import LdapIdentity
from ostiary_gateway.providers.ldap.settings import UserSearch
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.identity import IdentityContract
from tests.support.slapd import PASSWORD, PEOPLE_BASE, Slapd, slapd


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[Slapd]:
    with slapd(tmp_path_factory.mktemp("slapd"), ca) as server:
        yield server


@pytest.mark.needs("slapd", "slapadd")
class TestLdapIdentity(IdentityContract):
    """S1, S3, S28, L8."""

    USERS = UserSearch(base_dn=PEOPLE_BASE, uid_attribute="entryUUID")

    @pytest.fixture
    async def provider(self, directory: Slapd, clock: FakeClock) -> AsyncIterator[LdapIdentity]:
        provider = LdapIdentity(directory.settings(users=self.USERS), clock=clock)
        yield provider
        await provider.close()

    @pytest.fixture
    def proof(self) -> LoginRequest:
        return basic("alice", PASSWORD)

    @pytest.fixture
    def wrong_proof(self) -> LoginRequest:
        return basic("alice", "battery staple")


class TestLdapIdentityByTemplate(TestLdapIdentity):
    """S28, L8."""

    USERS = UserSearch(user_dn=f"uid={{username}},{PEOPLE_BASE}")


def basic(username: str, password: str) -> LoginRequest:
    encoded = b64encode(f"{username}:{password}".encode()).decode()
    return LoginRequest("GET", "/auth", headers=(("authorization", f"Basic {encoded}"),), remote_address="192.0.2.7")
