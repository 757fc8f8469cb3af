"""Settings of a directory: what is refused before anybody signs in, and what an entry says of its account."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ldap", reason="missing: python-ldap")

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ConfigurationError, ProviderError
from ostiary_gateway.catalog import Context
from ostiary_gateway.providers.ldap.connection import LdapEntry
from ostiary_gateway.providers.ldap.directory import IN_CHAIN, named_filter, user_of, why_unusable
from ostiary_gateway.providers.ldap.groups import LdapGroups
from ostiary_gateway.providers.ldap.identity import LdapIdentity
from ostiary_gateway.providers.ldap.settings import (
    GroupSearch,
    LdapIdentitySettings,
    LdapServer,
    Nested,
    SearchAccount,
    UserSearch,
    directory_settings,
)
from ostiary_gateway.settings.declare import read_settings

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "url": "ldaps://ldap.example.com",
    "bindDN": "cn=gateway,dc=example,dc=com",
    "bindPasswordFile": "password",
    "userSearch": {"baseDN": "ou=people,dc=example,dc=com"},
    "groupSearch": {"baseDN": "ou=groups,dc=example,dc=com", "nested": "recursive"},
}
PAGE = Path(__file__).parents[5] / "docs" / "how-to" / "sign-in-with-ldap.md"


def reading(**changes: Any) -> ConfigReader:
    settings = {key: value for key, value in (GOOD | changes).items() if value is not None}
    return ConfigReader(parse(yaml.safe_dump(settings)))


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "password").write_text("search-and-find\n")
    return Context("staff", tmp_path)


# --- the configuration ---


def test_settings_are_read(context: Context) -> None:
    found = reading(connections=3, timeout="2s", lockout={"attempts": 3})
    settings = directory_settings(read_settings(LdapIdentitySettings, found.root, context.directory), found.root)
    assert settings is not None
    assert found.problems == []
    assert settings.server == LdapServer("ldaps://ldap.example.com", connections=3, timeout=2.0)
    assert settings.groups == GroupSearch("ou=groups,dc=example,dc=com", nested=Nested.RECURSIVE)
    assert settings.users.filter == "(uid={username})"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"url": None}, "url"),
        ({"url": "ldap://ldap.example.com"}, "url"),
        ({"url": "ldap://ldap.example.com", "insecure": True}, "url"),
        ({"url": "ldap://127.0.0.1"}, "url"),
        ({"url": "ldaps://a.example.com ldap://b.example.com"}, "url"),
        ({"url": "ldaps://ldap.example.com/ou=people"}, "url"),
        ({"startTLS": True}, "startTLS"),
        ({"serverName": "x.example.com"}, "serverName"),
        ({"ca": "missing.pem"}, "ca"),
        ({"timeout": "0s"}, "timeout"),
        ({"connections": 0}, "connections"),
        ({"bindDN": None}, "bindDN"),
        ({"bindPasswordFile": None}, "bindPasswordFile"),
        ({"bindPasswordFile": "missing"}, "bindPasswordFile"),
        ({"bindDN": None, "bindPasswordFile": None}, "bindDN"),
        ({"userSearch": None}, "userSearch.baseDN"),
        ({"userSearch": {"baseDN": "dc=x", "filter": "(uid=alice)"}}, "userSearch.filter"),
        ({"userSearch": {"baseDN": "dc=x", "usernameAttribute": "uid)(x"}}, "userSearch.usernameAttribute"),
        ({"userSearch": {"userDN": "dc=x"}}, "userSearch.userDN"),
        ({"groupSearch": {}}, "groupSearch.baseDN"),
        ({"groupSearch": {"baseDN": "dc=x", "nested": "deep"}}, "groupSearch.nested"),
        ({"groupSearch": {"baseDN": "dc=x", "nested": "recursive", "userAttribute": "uid"}}, "groupSearch.nested"),
    ],
    ids=str,
)
@pytest.mark.parametrize("provider", [LdapIdentity, LdapGroups])
def test_a_mistake_is_told_where_it_stands(
    provider: type[LdapIdentity] | type[LdapGroups], changes: dict[str, Any], where: str, context: Context
) -> None:
    """L8: above all that passwords would be sent in plain text."""
    found = reading(**changes)
    provider.from_config(found.root, context)
    assert [problem.place.path for problem in found.problems] == [where]


def test_a_group_provider_must_know_where_groups_are(context: Context) -> None:
    found = reading(groupSearch=None)
    LdapGroups.from_config(found.root, context)
    assert [problem.place.path for problem in found.problems] == ["groupSearch"]


def test_without_tls_only_this_machine_is_spoken_to() -> None:
    """L8."""
    assert LdapServer("ldap://127.0.0.1:3890", insecure=True).uri() == "ldap://127.0.0.1:3890"
    for url in ("ldap://localhost.example.com", "ldap://192.0.2.1", "ldap://[2001:db8::1]"):
        with pytest.raises(ConfigurationError):
            LdapServer(url, insecure=True)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"a\0b"])
def test_a_password_that_cannot_be_one_is_an_outage_and_not_told(content: bytes, tmp_path: Path) -> None:
    """L8."""
    (tmp_path / "password").write_bytes(content)
    with pytest.raises(ProviderError):
        SearchAccount("cn=gateway", tmp_path / "password").password()


def test_the_page_shows_settings_that_are_read_and_names_all(context: Context, tmp_path: Path) -> None:
    (tmp_path / "ldap-password").write_text("secret")
    (tmp_path / "ldap-ca.pem").write_text("")
    text = PAGE.read_text()
    shown = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    blocks = [document for block in shown for document in yaml.safe_load_all(block)]
    classes: dict[str, type[LdapIdentity] | type[LdapGroups]] = {"identity": LdapIdentity, "groups": LdapGroups}
    entries = [
        (part, entry) for block in blocks for part in classes for entry in block.get(part, ()) if "type" in entry
    ]
    assert len(entries) >= 3
    for part, entry in entries:
        own = {key: value for key, value in entry.items() if key not in ("name", "type", "identities")}
        found = ConfigReader(parse(yaml.safe_dump(own)))
        classes[part].from_config(found.root, context)
        assert found.problems == []
        assert found.unknown_fields() == ()
        for setting in found.root._asked:
            assert f"`{setting}`" in text, setting


# --- what an entry says ---


def entry(**attributes: str | bytes) -> LdapEntry:
    values = {name.lower(): (v.encode() if isinstance(v, str) else v,) for name, v in attributes.items()}
    return LdapEntry("uid=alice,dc=example", values)


@pytest.mark.parametrize(
    "attributes",
    [
        {"userAccountControl": "514"},
        {"userAccountControl": "what"},
        {"accountExpires": "116444736000000001"},
        {"shadowExpire": "1"},
        {"shadowExpire": "0"},
        {"pwdAccountLockedTime": "000001010000Z"},
        {"nsAccountLock": "TRUE"},
    ],
    ids=str,
)
def test_an_account_that_is_disabled_or_expired_is_noticed(attributes: dict[str, str]) -> None:
    assert why_unusable(entry(**attributes), NOW)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"userAccountControl": "512"},
        {"userAccountControl": "66048"},
        {"accountExpires": "0"},
        {"accountExpires": "9223372036854775807"},
        {"shadowExpire": "-1"},
        {"shadowExpire": "99999"},
        {"nsAccountLock": "false"},
    ],
    ids=str,
)
def test_an_account_that_may_be_used_is_not_refused(attributes: dict[str, str]) -> None:
    assert why_unusable(entry(**attributes), NOW) is None


def test_a_user_has_one_name_and_a_uid_that_is_text() -> None:
    users = UserSearch(base_dn="dc=x", uid_attribute="objectGUID")
    found = user_of(entry(uid="alice", objectGUID=bytes(range(16))), users)
    assert found is not None
    assert (found.username, found.uid) == ("alice", "03020100-0504-0706-0809-0a0b0c0d0e0f")
    assert user_of(entry(uid="alice"), users) is None
    assert user_of(LdapEntry("x", {"uid": (b"alice", b"root")}), UserSearch(base_dn="dc=x")) is None


def test_active_directory_is_asked_by_its_matching_rule_with_escaped_names() -> None:
    """L8."""
    text = named_filter(GroupSearch("dc=x"), "CN=A (b),DC=x", ["a*", "b"], rule=f"{IN_CHAIN}=")
    assert text == (
        "(&(objectClass=*)(member:1.2.840.113556.1.4.1941:=CN\\3dA\\20\\28b\\29\\2cDC\\3dx)(|(cn=a\\2a)(cn=b)))"
    )
