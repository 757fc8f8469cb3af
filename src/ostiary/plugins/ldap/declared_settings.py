"""The settings of the identity provider and the group provider ``ldap``, as a configuration has them.

`ldap.settings` makes of them how a directory is reached and what is looked for, and checks what has to agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar

from ostiary.core.config import Fields
from ostiary.core.settings.declare import Itself
from ostiary.core.settings.kinds import AnyText, FilePath, Flag, Holds, Integer, OneOf, Seconds, Text
from ostiary.core.settings.sections import OptionalSection, Section
from ostiary.plugins.common.lockout import LockoutSettings
from ostiary.plugins.common.password_proof import Realm

# One login is a connection and three questions, and the gateway gives a provider half a minute for all of them.
SECONDS = 5.0
CONNECTIONS = 8
DN = "dn"
NO_URL = "it must be like ldaps://ldap.example.com, with a port if need be"
NO_GROUPS = "it is missing: where groups are"


class Nested(Enum):
    """Whether members of a group that is in a group are members of the latter."""

    NONE = "none"
    RECURSIVE = "recursive"  # we ask, level by level
    ACTIVE_DIRECTORY = "activeDirectory"  # the directory knows, by a matching rule of its own


def _text(doc: str, *, name: str = "", unset: str = "") -> Text:
    return Text(doc, name=name, unset=unset, empty="")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSearchSettings:
    """How users are found: below `base_dn` by `filter`, or by the template `user_dn`."""

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
    fields: Annotated[Fields, Itself] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSearchSettings:
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
    fields: Annotated[Fields, Itself] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
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
