"""The settings of the identity provider ``kerberos``. `kerberos.checks` checks their combinations."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.interfaces.identity import RenewalCheck
from ostiary_gateway.settings.declare import RawFields
from ostiary_gateway.settings.kinds import FilePath, Flag, Holds, Names, OneOf, Text
from ostiary_gateway.settings.sections import Sections


class ChannelBinding(Enum):
    """Whether a ticket must be bound to the TLS connection of its request."""

    OFFERED = "offered"  # a ticket that is bound to a connection must be bound to this one
    REQUIRED = "required"
    NONE = "none"


class KerberosRenewal(Enum):
    """How the user is checked when a session is refreshed."""

    DEFAULT = ""
    KDC = "kdc"
    SIGN_IN = "signIn"
    SESSION = "session"

    def check(self) -> RenewalCheck:
        return _CHECKS[self]


_CHECKS = {
    KerberosRenewal.DEFAULT: RenewalCheck.NOBODY,
    KerberosRenewal.KDC: RenewalCheck.ASKED,
    KerberosRenewal.SIGN_IN: RenewalCheck.SIGN_IN,
    KerberosRenewal.SESSION: RenewalCheck.ACCEPTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealmSettings:
    """One entry of ``realms``: how the principals of a realm become usernames."""

    fields: Annotated[ConfigSection, RawFields] = field(compare=False, repr=False)
    name: Annotated[
        str,
        Text(
            "the realm, as in `EXAMPLE.COM`",
            pattern=r"[^\s@/:\\]+",
            mistake="it is not the name of a realm",
            missing="it is missing: the realm",
        ),
    ]
    prefix: Annotated[
        str,
        Text(
            "what usernames of this realm begin with; it ends with a colon",
            pattern=r"[^\s@/:\\]+:",
            mistake="it must end with a colon, as in partner:",
            empty="",
            unset="nothing",
        ),
    ] = ""
    suffix: Annotated[
        str,
        Text(
            "what usernames of this realm end with; it begins with `@`",
            pattern=r"@[^\s@/:\\]+",
            mistake="it must begin with @, as in @PARTNER.COM",
            empty="",
            unset="nothing",
        ),
    ] = ""
    lowercase: Annotated[
        bool, Flag("names become lower case: for Active Directory, which does not tell capitals apart")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosSettings:
    """The settings of the identity provider ``kerberos``."""

    keytab: Annotated[
        Path,
        FilePath(
            "the keys of the gateway's service principal; read again when it changes",
            holds=Holds.SECRET,
            missing="it is missing: the file with the keys of the gateway",
        ),
    ]
    service_principals: Annotated[
        tuple[str, ...],
        Names(
            "the principals that tickets may be for, each with its realm",
            unset="those of the keytab that are `HTTP/` and the host of `externalURL`",
        ),
    ] = ()
    realms: Annotated[
        tuple[RealmSettings, ...],
        Sections("whose people may sign in; all other realms are refused", RealmSettings, entry="a realm", least=1),
    ]
    instances: Annotated[
        tuple[str, ...],
        Names("which instances of a principal may sign in, as in `alice/admin`, under that name", unset="none"),
    ] = ()
    channel_binding: Annotated[
        ChannelBinding,
        OneOf(
            "`offered`: a client that binds its ticket to a TLS connection must have bound it to this one; `required`:"
            " every client must; `none`: for a proxy in front that ends TLS",
            ChannelBinding,
        ),
    ] = ChannelBinding.OFFERED
    renewal: Annotated[
        KerberosRenewal,
        OneOf(
            "who is asked at renewals: `kdc`: the KDC, whether the principal is still allowed to sign in; `signIn`:"
            " sessions are not renewed, so a ticket is needed for every token; `session`: nobody, and sessions last as"
            " long as others",
            KerberosRenewal,
            unset="`tokens.uncheckedSession` holds",
        ),
    ] = KerberosRenewal.DEFAULT
