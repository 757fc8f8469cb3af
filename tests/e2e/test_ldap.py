"""A real directory: who is let in, who is refused, what is an outage, and which groups are found."""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

pytest.importorskip("ldap", reason="missing: python-ldap")

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest
from ostiary_gateway.providers.common.lockout import LockoutSettings
from ostiary_gateway.providers.ldap.directory import MAX_WAITING, LdapDirectory
from ostiary_gateway.providers.ldap.groups import LdapGroups
from ostiary_gateway.providers.ldap.identity import LdapIdentity
from ostiary_gateway.providers.ldap.settings import (
    GroupSearch,
    LdapServer,
    LdapSettings,
    Nested,
    SearchAccount,
    UserSearch,
)
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.group import REQUEST
from tests.support.slapd import GROUPS_BASE, PASSWORD, PEOPLE_BASE, SUFFIX, Slapd, slapd

pytestmark = pytest.mark.needs("slapd", "slapadd")

Make = Callable[..., LdapIdentity]


def basic(username: str, password: str = PASSWORD, address: str = "192.0.2.1") -> LoginRequest:
    encoded = b64encode(f"{username}:{password}".encode()).decode()
    return LoginRequest("GET", "/auth", headers=(("authorization", f"Basic {encoded}"),), remote_address=address)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[Slapd]:
    with slapd(tmp_path_factory.mktemp("slapd"), ca) as server:
        yield server


@pytest.fixture
async def make(directory: Slapd, clock: FakeClock) -> AsyncIterator[Make]:
    made: list[LdapIdentity] = []

    def build(settings: LdapSettings | None = None, lockout: LockoutSettings | None = None) -> LdapIdentity:
        made.append(LdapIdentity(settings or directory.settings(), lockout=lockout, clock=clock))
        return made[-1]

    yield build
    for provider in made:
        await provider.close()


# --- signing in ---


async def test_a_person_signs_in_over_ldaps(make: Make) -> None:
    """L8."""
    assert await make().handle_client(basic("alice")) == UserInfo("alice")


async def test_a_person_signs_in_over_starttls(make: Make, directory: Slapd) -> None:
    """L8."""
    server = LdapServer(directory.ldap, start_tls=True, ca=directory.ca)
    assert await make(directory.settings(server=server)).handle_client(basic("alice")) == UserInfo("alice")


async def test_with_starttls_the_certificate_may_have_another_name_that_is_set(make: Make, directory: Slapd) -> None:
    server = LdapServer(directory.ldap, start_tls=True, ca=directory.ca, server_name="directory.example.com")
    assert await make(directory.settings(server=server)).handle_client(basic("alice")) == UserInfo("alice")
    wrong = replace(server, server_name="elsewhere.example.com")
    with pytest.raises(ProviderError):
        await make(directory.settings(server=wrong)).handle_client(basic("alice"))


@pytest.mark.parametrize("start_tls", [False, True])
async def test_a_certificate_of_another_authority_is_an_outage(
    start_tls: bool, make: Make, directory: Slapd, tmp_path: Path
) -> None:
    """L8."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    url = directory.ldap if start_tls else directory.ldaps
    server = LdapServer(url, start_tls=start_tls, ca=tmp_path / "other.pem")
    before = directory.asked().count(" BIND ")
    with pytest.raises(ProviderError):
        await make(directory.settings(server=server)).handle_client(basic("alice"))
    assert directory.asked().count(" BIND ") == before


async def test_a_certificate_for_another_name_is_an_outage(make: Make, directory: Slapd) -> None:
    """L8."""
    server = LdapServer(directory.ldaps.replace("127.0.0.1", "localhost"), ca=directory.ca)
    with pytest.raises(ProviderError):
        await make(directory.settings(server=server)).handle_client(basic("alice"))


async def test_a_user_is_called_as_the_directory_spells_it(make: Make, directory: Slapd) -> None:
    users = UserSearch(base_dn=PEOPLE_BASE, filter="(|(uid={username})(mail={username}))", uid_attribute="entryUUID")
    provider = make(directory.settings(users=users))
    said = [await provider.handle_client(basic(name)) for name in ("alice", "ALICE", "Alice@Example.com")]
    user = said[0]
    assert isinstance(user, UserInfo)
    assert user.username == "alice"
    assert user.uid
    assert said == [user] * 3
    assert await provider.revalidate(user) == user


async def test_a_name_with_special_characters_is_a_name_like_any_other(make: Make) -> None:
    """L8."""
    assert await make().handle_client(basic("o'neil, (jr)*")) == UserInfo("o'neil, (jr)*")


@pytest.mark.parametrize("with_account", [True, False])
async def test_names_of_entries_can_be_known_by_a_template(with_account: bool, make: Make, directory: Slapd) -> None:
    """L8."""
    users = UserSearch(user_dn=f"uid={{username}},{PEOPLE_BASE}")
    settings = LdapSettings(directory.settings().server, users, directory.account if with_account else None)
    provider = make(settings)
    assert await provider.handle_client(basic("o'neil, (jr)*")) == UserInfo("o'neil, (jr)*")
    for name in ("nobody", "alice,ou=people", "alice+cn=alice", "*"):
        with pytest.raises(LoginRefused):
            await provider.handle_client(basic(name))


# --- refusals ---


@pytest.mark.parametrize(
    "name", ["alice", "nobody", "*", "a*", ")(uid=*", "alice)(uid=*", "*)(|(uid=*", "\\00", "alice\0", "alice\\2a", " "]
)
async def test_a_wrong_name_or_password_is_refused_the_same_way(name: str, make: Make) -> None:
    """L8."""
    with pytest.raises(LoginRefused) as refused:
        await make().handle_client(basic(name, "wrong" if name == "alice" else PASSWORD))
    assert refused.value.summary == "wrong user name or password"
    assert refused.value.www_authenticate


async def test_an_empty_password_never_reaches_the_directory(make: Make, directory: Slapd) -> None:
    """L8."""
    before = directory.asked().count(" BIND ")
    assert isinstance(await make().handle_client(basic("alice", "")), Challenge)
    assert directory.asked().count(" BIND ") == before


async def test_an_unknown_name_costs_a_bind_of_nobody(make: Make, directory: Slapd) -> None:
    """L8, L9."""
    before = len(directory.asked())
    with pytest.raises(LoginRefused):
        await make().handle_client(basic("nobody"))
    told = directory.asked()[before:]
    binds = [line for line in told.splitlines() if " BIND dn=" in line and "method=128" in line]
    assert any("cn=gateway" not in line and PEOPLE_BASE in line for line in binds)


async def test_a_name_that_two_entries_have_is_refused(make: Make, directory: Slapd) -> None:
    users = UserSearch(base_dn=PEOPLE_BASE, filter="(mail={username})")
    with pytest.raises(LoginRefused):
        await make(directory.settings(users=users)).handle_client(basic("shared@example.com"))


async def test_more_entries_than_were_asked_for_are_refused_too(make: Make, directory: Slapd) -> None:
    users = UserSearch(base_dn=PEOPLE_BASE, filter="(|(uid={username})(objectClass=person))")
    with pytest.raises(LoginRefused):
        await make(directory.settings(users=users)).handle_client(basic("alice"))


async def test_an_expired_account_is_refused_at_login_and_at_renewal(make: Make) -> None:
    provider = make()
    with pytest.raises(LoginRefused, match="disabled or has expired"):
        await provider.handle_client(basic("dave"))
    with pytest.raises(LoginRefused, match="disabled or has expired"):
        await provider.revalidate(UserInfo("dave"))
    assert await provider.handle_client(basic("erin")) == UserInfo("erin")


async def test_a_renewal_takes_a_name_as_it_is(make: Make, directory: Slapd) -> None:
    users = UserSearch(base_dn=PEOPLE_BASE, uid_attribute="entryUUID")
    provider = make(directory.settings(users=users))
    for user in (UserInfo("ALICE"), UserInfo("*"), UserInfo("alice", uid="somebody-else")):
        with pytest.raises(LoginRefused):
            await provider.revalidate(user)


async def test_guessing_is_slowed_down(make: Make, directory: Slapd) -> None:
    """L9."""
    provider = make(lockout=LockoutSettings(attempts=2))
    for _ in range(2):
        with pytest.raises(LoginRefused):
            await provider.handle_client(basic("alice", "wrong"))
    with pytest.raises(LoginRefused) as refused:
        await provider.handle_client(basic("Alice"))
    assert refused.value.retry_after


# --- outages ---


async def test_a_wrong_password_of_the_search_account_is_an_outage(
    make: Make, directory: Slapd, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("not-this")
    settings = replace(directory.settings(), account=SearchAccount(directory.account.dn, tmp_path / "password"))
    with pytest.raises(ProviderError) as failed:
        await make(settings).handle_client(basic("alice"))
    assert "not-this" not in str(failed.value)


async def test_a_server_that_is_down_is_an_outage(make: Make, directory: Slapd) -> None:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(ProviderError) as failed:
        await make(directory.settings(server=LdapServer(f"ldaps://localhost:{port}"))).handle_client(basic("alice"))
    assert PASSWORD not in str(failed.value)


@pytest.mark.parametrize("scheme", ["ldaps", "starttls", "named"])
async def test_a_server_that_says_nothing_is_an_outage_after_the_time_limit(
    scheme: str, make: Make, directory: Slapd
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        server = LdapServer(
            f"{'ldaps' if scheme == 'ldaps' else 'ldap'}://localhost:{port}",
            start_tls=scheme != "ldaps",
            server_name="directory.example.com" if scheme == "named" else "",
            connect_timeout=0.3,
            timeout=0.3,
        )
        with pytest.raises(ProviderError):
            await asyncio.wait_for(make(directory.settings(server=server)).handle_client(basic("alice")), 60)


async def test_a_server_that_agrees_to_starttls_and_falls_silent_is_an_outage_too(make: Make, directory: Slapd) -> None:
    def agree() -> socket.socket:
        connection, _ = silent.accept()
        # On a busy machine the client may have given up already, which is an outage as well.
        with suppress(OSError):
            connection.recv(1024)
            # An ExtendedResponse to the first message: success.
            connection.sendall(bytes.fromhex("300c02010178070a010004000400"))
        return connection

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ldap://127.0.0.1:{silent.getsockname()[1]}"
        server = LdapServer(url, start_tls=True, ca=directory.ca, connect_timeout=1.0, timeout=1.0)
        agreed = asyncio.create_task(asyncio.to_thread(agree))
        with pytest.raises(ProviderError):
            await asyncio.wait_for(make(directory.settings(server=server)).handle_client(basic("alice")), 60)
        (await agreed).close()


async def test_a_base_that_does_not_exist_is_an_outage(make: Make, directory: Slapd) -> None:
    users = UserSearch(base_dn=f"ou=nowhere,{SUFFIX}")
    with pytest.raises(ProviderError):
        await make(directory.settings(users=users)).handle_client(basic("alice"))


async def test_more_questions_than_can_wait_are_an_outage_at_once(directory: Slapd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ldaps://127.0.0.1:{silent.getsockname()[1]}"
        server = LdapServer(url, ca=directory.ca, connect_timeout=0.3, timeout=0.3, connections=1)
        asked = LdapDirectory(directory.settings(server=server))
        waiting = [asyncio.create_task(asked.find(UserInfo("alice"))) for _ in range(1 + MAX_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(ProviderError, match="too many"):
            await asked.find(UserInfo("alice"))
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asked.close()


# --- groups ---


async def groups(
    directory: Slapd, user: str, *relevant: str, nested: Nested = Nested.NONE, user_prefix: str = ""
) -> dict[str, str]:
    settings = directory.settings(groups=GroupSearch(GROUPS_BASE, nested=nested))
    provider = LdapGroups(settings, user_prefix=user_prefix)
    try:
        found = await provider.groups_of(UserInfo(user), frozenset(relevant), REQUEST)
    finally:
        await provider.close()
    return {membership.group: membership.source for membership in found}


async def test_direct_groups_are_found_and_nested_ones_are_not(directory: Slapd) -> None:
    assert await groups(directory, "alice", "developers", "operators", "staff") == {"developers": ""}


async def test_nested_groups_are_found_in_spite_of_a_cycle(directory: Slapd) -> None:
    found = await groups(directory, "alice", "platform", "staff", "everybody", nested=Nested.RECURSIVE)
    assert found == {
        "platform": "",
        "staff": 'via nested group "platform"',
        "everybody": 'via nested group "staff"',
    }


async def test_groups_that_no_policy_mentions_are_not_asked_for(directory: Slapd) -> None:
    before = len(directory.asked())
    assert await groups(directory, "alice", "developers") == {"developers": ""}
    told = directory.asked()[before:]
    assert "(cn=developers)" in told
    assert "platform" not in told
    assert await groups(directory, "alice", "everybody", nested=Nested.RECURSIVE) == {
        "everybody": 'via nested group "staff"'
    }


async def test_a_name_of_a_group_cannot_change_the_question(directory: Slapd) -> None:
    """L8."""
    for name in ("*", "x)(cn=*", "developers)(cn=developers", "\0", "Developers", "\ud800", ""):
        assert await groups(directory, "alice", name) == {}
    assert await groups(directory, "alice", "odd )(cn=*") == {"odd )(cn=*": ""}


async def test_many_groups_are_asked_for_in_parts(directory: Slapd) -> None:
    names = [f"group-{number}" for number in range(200)]
    assert await groups(directory, "alice", *names, "platform") == {"platform": ""}


async def test_only_users_with_the_prefix_are_asked_about(directory: Slapd) -> None:
    assert await groups(directory, "corp:alice", "developers", user_prefix="corp:") == {"developers": ""}
    assert await groups(directory, "alice", "developers", user_prefix="corp:") == {}


async def test_a_name_that_is_only_almost_the_users_has_no_groups(directory: Slapd) -> None:
    """L8."""
    for name in ("ALICE", "alice ", "*", "alice)(uid=*", "\ud800"):
        assert await groups(directory, name, "developers") == {}


async def test_the_identity_provider_tells_groups_too(make: Make) -> None:
    found = await make().groups_of(UserInfo("alice"), {"developers", "operators"}, REQUEST)
    assert found == (Membership("developers"),)


async def test_groups_of_a_base_that_does_not_exist_are_an_outage(directory: Slapd) -> None:
    provider = LdapGroups(directory.settings(groups=GroupSearch(f"ou=nowhere,{SUFFIX}")))
    with pytest.raises(ProviderError):
        await provider.groups_of(UserInfo("alice"), {"developers"}, REQUEST)
    await provider.close()
