"""How a directory is reached and what is looked for in it; read by the identity and the group provider alike.

    url: ldaps://ldap.example.com
    bindDN: cn=gateway,dc=example,dc=com
    bindPasswordFile: ldap-password
    userSearch: {baseDN: "ou=people,dc=example,dc=com", filter: "(uid={username})"}
    groupSearch: {baseDN: "ou=groups,dc=example,dc=com", nested: recursive}

Passwords travel over TLS with a verified certificate, or not beyond this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TypeVar
from urllib.parse import urlsplit

from ostiary.core.catalog import Context
from ostiary.core.config import Fields
from ostiary.core.net import is_loopback
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Secret
from ostiary.plugins.ldap.escape import PLACEHOLDER, dn_template_mistake, filter_mistake

# One login is a connection and three questions, and the gateway gives a provider half a minute for all of them.
SECONDS = 5.0
CONNECTIONS = 8
MAX_SECRET_BYTES = 4096
DN = "dn"

_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9-]*|[0-9]+(\.[0-9]+)+")
T = TypeVar("T")


class Nested(Enum):
    """Whether members of a group that is in a group are members of the latter."""

    NONE = "none"
    RECURSIVE = "recursive"  # we ask, level by level
    ACTIVE_DIRECTORY = "activeDirectory"  # the directory knows, by a matching rule of its own


@dataclass(frozen=True, slots=True)
class LdapServer:
    """Raises `ConfigurationError` if a password would travel in the clear."""

    url: str
    start_tls: bool = False
    ca: str | os.PathLike[str] | None = None
    server_name: str = ""
    insecure: bool = False
    connect_timeout: float = SECONDS
    timeout: float = SECONDS
    connections: int = CONNECTIONS

    def __post_init__(self) -> None:
        if (wrong := _url_mistake(self.url)) is not None:
            raise _mistake("url", wrong)
        tls = urlsplit(self.url).scheme == "ldaps"
        if tls and self.start_tls:
            raise _mistake("startTLS", "ldaps:// begins with TLS: there is nothing to start")
        if not tls and not self.start_tls and not (self.insecure and is_loopback(self.host)):
            hint = "use ldaps://, or startTLS: true; without TLS only on this machine, with insecure: true"
            raise _mistake("url", "passwords would be sent in plain text", hint)
        if self.server_name and not self.start_tls:
            raise _mistake("serverName", "it works with startTLS only: with ldaps:// the name is that of the url")
        if self.connect_timeout <= 0 or self.timeout <= 0:
            raise _mistake("timeout" if self.timeout <= 0 else "connectTimeout", "it must be greater than zero")
        if self.connections < 1:
            raise _mistake("connections", "it must be at least 1")

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (636 if urlsplit(self.url).scheme == "ldaps" else 389)

    @property
    def has_tls(self) -> bool:
        return self.start_tls or urlsplit(self.url).scheme == "ldaps"

    def uri(self, host: str | None = None) -> str:
        """The URL as the LDAP library takes it: it would read a list of servers, or a search, from one with more."""
        name = host or self.host
        return f"{urlsplit(self.url).scheme}://{f'[{name}]' if ':' in name else name}:{self.port}"


@dataclass(frozen=True, slots=True)
class SearchAccount:
    """Who searches. The password is read at every use: the file is replaced in place."""

    dn: str
    password_file: str | os.PathLike[str]

    def __post_init__(self) -> None:
        if self.dn == "":
            raise _mistake("bindDN", "it is missing: the account that searches")

    def password(self) -> Secret:
        try:
            with open(self.password_file, "rb") as file:
                text = file.read(MAX_SECRET_BYTES).decode().rstrip("\r\n")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        else:
            if text and "\0" not in text:
                return Secret(text)
            why = "it is empty, or no text"
        # Raised outside of the handler: the decoder's exception carries the text along.
        summary, where = "the password of the search account cannot be read", str(self.password_file)
        raise ProviderError(summary, cause=why, where=where, code="token-file-unreadable")


@dataclass(frozen=True, slots=True)
class UserSearch:
    """Users are found below `base_dn` by `filter`; or their names are known, by the template `user_dn`."""

    base_dn: str = ""
    filter: str = ""
    user_dn: str = ""
    username_attribute: str = "uid"
    uid_attribute: str = ""

    def __post_init__(self) -> None:
        if bool(self.base_dn) == bool(self.user_dn):
            raise _mistake("userSearch.baseDN", "either baseDN or userDN says where users are")
        if self.user_dn and (wrong := dn_template_mistake(self.user_dn)) is not None:
            raise _mistake("userSearch.userDN", wrong)
        if self.filter == "":
            object.__setattr__(self, "filter", "(objectClass=*)" if self.user_dn else f"(uid={PLACEHOLDER})")
        if (wrong := filter_mistake(self.filter, placeholder=not self.user_dn)) is not None:
            raise _mistake("userSearch.filter", wrong)
        _check_attribute("userSearch.usernameAttribute", self.username_attribute)
        if self.uid_attribute:
            _check_attribute("userSearch.uidAttribute", self.uid_attribute)


@dataclass(frozen=True, slots=True)
class GroupSearch:
    """Groups are entries below `base_dn` whose `member_attribute` holds the user's `user_attribute`."""

    base_dn: str
    filter: str = "(objectClass=*)"
    name_attribute: str = "cn"
    member_attribute: str = "member"
    user_attribute: str = DN
    nested: Nested = Nested.NONE

    def __post_init__(self) -> None:
        if self.base_dn == "":
            raise _mistake("groupSearch.baseDN", "it is missing: where groups are")
        if (wrong := filter_mistake(self.filter, placeholder=False)) is not None:
            raise _mistake("groupSearch.filter", wrong)
        _check_attribute("groupSearch.nameAttribute", self.name_attribute)
        _check_attribute("groupSearch.memberAttribute", self.member_attribute)
        _check_attribute("groupSearch.userAttribute", self.user_attribute)
        if self.nested is not Nested.NONE and self.user_attribute != DN:
            raise _mistake("groupSearch.nested", "groups are in groups by their dn, so userAttribute must be dn")


@dataclass(frozen=True, slots=True)
class LdapSettings:
    server: LdapServer
    users: UserSearch
    account: SearchAccount | None = None
    groups: GroupSearch | None = None

    def __post_init__(self) -> None:
        if self.account is None and (self.users.base_dn or self.groups):
            raise _mistake("bindDN", "it is missing: the account that searches for users and groups")


def unused() -> LdapSettings:
    """In place of settings with a mistake in them. Never asked: with a problem noted, the gateway does not start."""
    return LdapSettings(LdapServer("ldaps://localhost"), UserSearch(user_dn=f"uid={PLACEHOLDER},dc=invalid"))


def read_settings(fields: Fields, context: Context) -> LdapSettings | None:
    """The settings of a provider; None, and a problem for each mistake, if there are any."""
    # Each section is opened once: in one that is opened to note a mistake, nobody has asked for its other fields.
    section, group_section = fields.section("userSearch"), fields.optional_section("groupSearch")
    sections = {"": fields, "userSearch": section, "groupSearch": group_section or fields}
    server = _noted(sections, lambda: _server(fields, context))
    users = _noted(sections, lambda: _users(section))
    account = _noted(sections, lambda: _account(fields, context))
    groups = None if group_section is None else _noted(sections, lambda: _groups(group_section))
    if not server or not users or not account or (group_section is not None and groups is None):
        return None
    return _noted(sections, lambda: LdapSettings(server, users, account[0], groups))


def _server(fields: Fields, context: Context) -> LdapServer:
    ca, connections = fields.string("ca"), fields.optional_integer("connections")
    connect, operation = (fields.optional_duration(key) for key in ("connectTimeout", "timeout"))
    path = context.path(ca) if ca else None
    server = LdapServer(
        fields.string("url"),
        start_tls=fields.boolean("startTLS"),
        ca=path,
        server_name=fields.string("serverName"),
        insecure=fields.boolean("insecure"),
        connect_timeout=_seconds(connect),
        timeout=_seconds(operation),
        connections=CONNECTIONS if connections is None else connections,
    )
    if path is not None and not os.access(path, os.R_OK):
        raise _mistake("ca", "the file cannot be read")
    return server


def _account(fields: Fields, context: Context) -> tuple[SearchAccount | None]:
    dn, path = fields.string("bindDN"), fields.string("bindPasswordFile")
    if not dn and not path:
        return (None,)
    if not path:
        raise _mistake("bindPasswordFile", "it is missing: the file with the password of bindDN")
    account = SearchAccount(dn, context.path(path))
    try:
        account.password()
    except ProviderError as error:
        raise _mistake("bindPasswordFile", f"{error.summary}: {error.cause}") from None
    return (account,)


def _users(fields: Fields) -> UserSearch:
    return UserSearch(
        base_dn=fields.string("baseDN"),
        filter=fields.string("filter"),
        user_dn=fields.string("userDN"),
        username_attribute=fields.string("usernameAttribute") or "uid",
        uid_attribute=fields.string("uidAttribute"),
    )


def _groups(fields: Fields) -> GroupSearch:
    nested = fields.string("nested") or Nested.NONE.value
    choices = {choice.value: choice for choice in Nested}
    found = GroupSearch(
        base_dn=fields.string("baseDN"),
        filter=fields.string("filter") or "(objectClass=*)",
        name_attribute=fields.string("nameAttribute") or "cn",
        member_attribute=fields.string("memberAttribute") or "member",
        user_attribute=fields.string("userAttribute") or DN,
        nested=choices.get(nested, Nested.NONE),
    )
    if nested not in choices:
        raise _mistake("groupSearch.nested", f"it must be one of {', '.join(choices)}")
    return found


def _noted(sections: Mapping[str, Fields], build: Callable[[], T]) -> T | None:
    try:
        return build()
    except ConfigurationError as error:
        section, _, key = str(error.where).rpartition(".")
        sections[section].problem(error.cause or error.summary, key, error.hint)
        return None


def _seconds(span: timedelta | None) -> float:
    return SECONDS if span is None else span.total_seconds()


def _check_attribute(where: str, name: str) -> None:
    if not _ATTRIBUTE.fullmatch(name):
        raise _mistake(where, "it is not the name of an attribute")


def _mistake(where: str, cause: str, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError("the directory cannot be used", cause=cause, where=where, hint=hint)


def _url_mistake(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("ldap", "ldaps") and parts.path in ("", "/") and not parts.query and not parts.fragment
        if whole and parts.port != 0 and re.fullmatch(r"[A-Za-z0-9.:_-]+", parts.hostname or "") and "@" not in url:
            return None
    except ValueError:
        pass
    return "it must be like ldaps://ldap.example.com, with a port if need be"
