"""The settings of a directory and its searches, shared by the identity and the group provider ``ldap``.

    url: ldaps://ldap.example.com
    bindDN: cn=gateway,dc=example,dc=com
    bindPasswordFile: ldap-password
    userSearch: {baseDN: "ou=people,dc=example,dc=com", filter: "(uid={username})"}
    groupSearch: {baseDN: "ou=groups,dc=example,dc=com", nested: recursive}

Passwords are sent over TLS with a verified certificate, or over loopback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar
from urllib.parse import urlsplit

from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Secret
from ostiary_gateway.providers.common.lockout import LockoutSettings
from ostiary_gateway.providers.common.password_proof import Realm
from ostiary_gateway.providers.ldap.escape import PLACEHOLDER, dn_template_mistake, filter_mistake
from ostiary_gateway.settings.declare import RawFields
from ostiary_gateway.settings.kinds import AnyText, FilePath, Flag, Holds, Integer, OneOf, Seconds, Text
from ostiary_gateway.settings.sections import OptionalSection, Section

# A login takes a connection and three queries, and the gateway gives a provider 30 seconds for all of them.
SECONDS = 5.0
CONNECTIONS = 8
DN = "dn"
NO_URL = "it must be like ldaps://ldap.example.com, with a port if need be"
NO_GROUPS = "it is missing: where groups are"


class Nested(Enum):
    """Whether members of a nested group are members of the group that contains it."""

    NONE = "none"
    RECURSIVE = "recursive"  # the gateway queries level by level
    ACTIVE_DIRECTORY = "activeDirectory"  # the directory resolves nesting, with its own matching rule


def _text(doc: str, *, name: str = "", unset: str = "") -> Text:
    return Text(doc, name=name, unset=unset, empty="")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSearchSettings:
    """The search for users: below `base_dn` with `filter`, or by the template `user_dn`."""

    SCHEMA: ClassVar[Mapping[str, object]] = {"oneOf": [{"required": ["baseDN"]}, {"required": ["userDN"]}]}

    base_dn: Annotated[str, _text("users are entries below this one", name="baseDN", unset="none")] = ""
    filter: Annotated[
        str,
        _text(
            "which entry has the name that was typed",
            unset="`(uid={username})`, or `(objectClass=*)` with `userDN`",
        ),
    ] = ""
    user_dn: Annotated[
        str, _text("the entry's own name with `{username}` in it, in place of a search", name="userDN", unset="none")
    ] = ""
    username_attribute: Annotated[str, _text("the attribute that becomes the username")] = "uid"
    uid_attribute: Annotated[str, _text("the attribute that becomes the uid", unset="none")] = ""
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSearchSettings:
    """The settings ``groupSearch``."""

    base_dn: Annotated[str, Text("groups are entries below this one", name="baseDN", empty="", missing=NO_GROUPS)]
    filter: Annotated[str, _text("which of the entries are groups")] = "(objectClass=*)"
    name_attribute: Annotated[str, _text("the attribute with the group's name")] = "cn"
    member_attribute: Annotated[str, _text("the attribute that lists members")] = "member"
    user_attribute: Annotated[str, _text("what of the user it lists")] = DN
    nested: Annotated[
        Nested,
        OneOf(
            "whether members of a group that is in a group count",
            Nested,
            mistake="it must be one of {}",
            hint="",
            lenient=True,
        ),
    ] = Nested.NONE
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
    """The settings of the connection to a directory, and of its searches."""

    url: Annotated[str, Text("`ldaps://host:port`, or `ldap://` with `startTLS`", empty="", missing=NO_URL)]
    start_tls: Annotated[bool, Flag("switch to TLS before anything is said", name="startTLS")] = False
    ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of the server", holds=Holds.CERTIFICATES, checked=False, empty="", unset="the system's"
        ),
    ] = None
    server_name: Annotated[str, _text("with `startTLS`: the name in the certificate", unset="that of the `url`")] = ""
    insecure: Annotated[bool, Flag("without TLS, on this machine only")] = False
    connect_timeout: Annotated[float, Seconds("how long to wait for a connection")] = SECONDS
    timeout: Annotated[float, Seconds("how long to wait for an answer")] = SECONDS
    connections: Annotated[int, Integer("connections at a time")] = CONNECTIONS
    bind_dn: Annotated[str, _text("the account that searches", name="bindDN", unset="none")] = ""
    bind_password_file: Annotated[
        Path | None,
        FilePath("the file with its password", holds=Holds.SECRET, checked=False, empty="", unset="none"),
    ] = None
    user_search: Annotated[UserSearchSettings, Section("how users are found", UserSearchSettings, required=True)]
    group_search: Annotated[
        GroupSearchSettings | None, OptionalSection("how groups are found", GroupSearchSettings)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LdapIdentitySettings(DirectorySettings):
    realm: Realm = ""
    lockout: Annotated[LockoutSettings, Section("when guessing is stopped", LockoutSettings)] = field(
        default=LockoutSettings()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LdapGroupSettings(DirectorySettings):
    group_search: Annotated[
        GroupSearchSettings | None,
        OptionalSection("how groups are found", GroupSearchSettings, missing=NO_GROUPS),
    ]
    user_prefix: Annotated[str, AnyText("what the usernames begin with that are the directory's", unset="none")] = ""
    require_user: Annotated[
        bool,
        Flag(
            "users whom the directory does not know, or whose account is disabled or has expired there, are refused: at"
            " sign-in and at each renewal"
        ),
    ] = False


MAX_SECRET_BYTES = 4096

_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9-]*|[0-9]+(\.[0-9]+)+")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LdapServer:
    """The connection to the server. Raises `ConfigurationError` if a password would be sent in plain text."""

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
        """Return host and port as a URL. The library would read a longer one as a list of servers or a search."""
        name = host or self.host
        return f"{urlsplit(self.url).scheme}://{f'[{name}]' if ':' in name else name}:{self.port}"


@dataclass(frozen=True, slots=True)
class SearchAccount:
    """The account that searches. Its password is read at every use, since the file may be replaced."""

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
        # Raised outside of the handler: the decoder's exception contains the text.
        summary, where = "the password of the search account cannot be read", str(self.password_file)
        raise ProviderError(summary, cause=why, where=where, code="token-file-unreadable")


@dataclass(frozen=True, slots=True)
class UserSearch:
    """The search for users: below `base_dn` with `filter`, or without a search by the template `user_dn`."""

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
    """The search for groups: entries below `base_dn` whose `member_attribute` holds the user's `user_attribute`."""

    base_dn: str
    filter: str = "(objectClass=*)"
    name_attribute: str = "cn"
    member_attribute: str = "member"
    user_attribute: str = DN
    nested: Nested = Nested.NONE

    def __post_init__(self) -> None:
        if self.base_dn == "":
            raise _mistake("groupSearch.baseDN", NO_GROUPS)
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


def placeholder_settings() -> LdapSettings:
    """Return a substitute for invalid settings. Never used: after a reported error the gateway does not start."""
    return LdapSettings(LdapServer("ldaps://localhost"), UserSearch(user_dn=f"uid={PLACEHOLDER},dc=invalid"))


def directory_settings(declared: DirectorySettings, fields: ConfigSection) -> LdapSettings | None:
    """Return the settings of the directory. If any is invalid, report each error and return None."""
    groups_declared = declared.group_search
    sections = {
        "": fields,
        "userSearch": declared.user_search.fields,
        "groupSearch": fields if groups_declared is None else groups_declared.fields,
    }
    server = _build(sections, lambda: _server(declared))
    users = _build(sections, lambda: _users(declared.user_search))
    account = _build(sections, lambda: _account(declared))
    groups = None if groups_declared is None else _build(sections, lambda: _groups(groups_declared))
    if not server or not users or not account or (groups_declared is not None and groups is None):
        return None
    return _build(sections, lambda: LdapSettings(server, users, account[0], groups))


def _server(declared: DirectorySettings) -> LdapServer:
    server = LdapServer(
        declared.url,
        start_tls=declared.start_tls,
        ca=declared.ca,
        server_name=declared.server_name,
        insecure=declared.insecure,
        connect_timeout=declared.connect_timeout,
        timeout=declared.timeout,
        connections=declared.connections,
    )
    if declared.ca is not None and not os.access(declared.ca, os.R_OK):
        raise _mistake("ca", "the file cannot be read")
    return server


def _account(declared: DirectorySettings) -> tuple[SearchAccount | None]:
    dn, path = declared.bind_dn, declared.bind_password_file
    if not dn and not path:
        return (None,)
    if not path:
        raise _mistake("bindPasswordFile", "it is missing: the file with the password of bindDN")
    account = SearchAccount(dn, path)
    try:
        account.password()
    except ProviderError as error:
        raise _mistake("bindPasswordFile", f"{error.summary}: {error.cause}") from None
    return (account,)


def _users(declared: UserSearchSettings) -> UserSearch:
    return UserSearch(
        base_dn=declared.base_dn,
        filter=declared.filter,
        user_dn=declared.user_dn,
        username_attribute=declared.username_attribute,
        uid_attribute=declared.uid_attribute,
    )


def _groups(declared: GroupSearchSettings) -> GroupSearch:
    return GroupSearch(
        base_dn=declared.base_dn,
        filter=declared.filter,
        name_attribute=declared.name_attribute,
        member_attribute=declared.member_attribute,
        user_attribute=declared.user_attribute,
        nested=declared.nested,
    )


def _build(sections: Mapping[str, ConfigSection], build: Callable[[], T]) -> T | None:
    """Return the result of *build*. If it raises, report the error at its setting and return None."""
    try:
        return build()
    except ConfigurationError as error:
        section, _, key = str(error.where).rpartition(".")
        if sections[section].is_right(key):
            sections[section].problem(error.cause or error.summary, key, error.hint)
        return None


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
    return NO_URL
