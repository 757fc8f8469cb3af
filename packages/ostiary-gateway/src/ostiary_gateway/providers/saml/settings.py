"""The settings of the identity provider ``saml``. Imports no SAML library, so they can be read without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar

from ostiary_gateway.providers.common.jwt_settings import CLOCK_SKEW, Algorithms, ClockSkew
from ostiary_gateway.providers.common.refresh import Renewal, RenewalSetting
from ostiary_gateway.providers.saml.assertion import AttributeNames
from ostiary_gateway.settings.kinds import Duration, FilePath, Flag, Holds, OneOf, Text, Texts
from ostiary_gateway.settings.sections import Section

# The accepted signature algorithms, by their names in the setting ``algorithms``. SHA-1, DSA and all algorithms with a
# shared secret are excluded permanently.

_MORE_2001 = "http://www.w3.org/2001/04/xmldsig-more#"
_MORE_2007 = "http://www.w3.org/2007/05/xmldsig-more#"
_BITS = (256, 384, 512)

ALGORITHMS: Mapping[str, str] = MappingProxyType(
    {
        **{f"rsa-sha{bits}": f"{_MORE_2001}rsa-sha{bits}" for bits in _BITS},
        **{f"ecdsa-sha{bits}": f"{_MORE_2001}ecdsa-sha{bits}" for bits in _BITS},
        **{f"sha{bits}-rsa-mgf1": f"{_MORE_2007}sha{bits}-rsa-MGF1" for bits in _BITS},
    }
)

REFRESH = timedelta(hours=1)
_URN = "urn:oasis:names:tc:SAML:2.0:bindings:"


class SamlBinding(Enum):
    """How a message is sent through the browser."""

    REDIRECT = "redirect"
    POST = "post"

    @property
    def uri(self) -> str:
        return f"{_URN}HTTP-Redirect" if self is SamlBinding.REDIRECT else f"{_URN}HTTP-POST"


class Signed(Enum):
    """Which element must be signed."""

    EITHER = "either"
    RESPONSE = "response"
    ASSERTION = "assertion"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    required: Annotated[bool, Flag("whether assertions must be encrypted for `keyFile`")] = False
    cbc: Annotated[
        bool, Flag("whether AES in CBC mode is accepted, which proves nothing about its content; better use AES-GCM")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamlSettings:
    """The settings of the identity provider ``saml``."""

    SCHEMA: ClassVar[Mapping[str, object]] = {
        "oneOf": [{"required": ["metadataFile"]}, {"required": ["metadataURL"]}],
        "dependentRequired": {"keyFile": ["certificateFile"], "certificateFile": ["keyFile"]},
    }

    metadata_file: Annotated[
        Path | None,
        FilePath("a file with the metadata of the identity system", checked=False, empty="", unset="`metadataURL`"),
    ] = None
    metadata_url: Annotated[
        str,
        Text("the address of its metadata, in place of `metadataFile`", name="metadataURL", empty="", unset="none"),
    ] = ""
    metadata_certificate_file: Annotated[
        Path | None,
        FilePath(
            "the certificate (PEM) whose key must have signed the metadata",
            holds=Holds.CERTIFICATES,
            checked=False,
            empty="",
            unset="none: the file, or TLS, is trusted",
        ),
    ] = None
    metadata_refresh: Annotated[
        timedelta,
        Duration("how long the metadata of an address is used before it is asked again", least=timedelta(minutes=1)),
    ] = REFRESH
    identity_system: Annotated[
        str, Text("its entityID, where the metadata is about several", empty="", unset="the only one there")
    ] = ""
    ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of `metadataURL`",
            holds=Holds.CERTIFICATES,
            checked=False,
            empty="",
            unset="the system's",
        ),
    ] = None
    entity_id: Annotated[
        str,
        Text(
            "what the gateway is called at the identity system",
            name="entityID",
            empty="",
            unset="the address of its metadata, `<externalURL>/auth/<name>/metadata`",
        ),
    ] = ""
    key_file: Annotated[
        Path | None,
        FilePath(
            "our private key (PEM): requests are signed with it, and assertions decrypted",
            holds=Holds.SECRET,
            checked=False,
            unset="none: nothing is signed or decrypted, and there is no single logout",
        ),
    ] = None
    certificate_file: Annotated[
        Path | None,
        FilePath("the certificate (PEM) of `keyFile`", holds=Holds.CERTIFICATES, checked=False, empty="", unset="none"),
    ] = None
    binding: Annotated[SamlBinding, OneOf("how requests travel to the identity system", SamlBinding)] = (
        SamlBinding.REDIRECT
    )
    name_id_format: Annotated[
        str,
        Text("the format of NameID to ask for", name="nameIDFormat", empty="", unset="what the identity system likes"),
    ] = ""
    authn_context: Annotated[
        tuple[str, ...],
        Texts(
            "the ways to sign in (AuthnContextClassRef) of which one is asked for, and required",
            empty="it contains an empty string",
            unset="any",
        ),
    ] = ()
    attributes: Annotated[AttributeNames, Section("which attribute says what", AttributeNames)] = field(
        default=AttributeNames()
    )
    require_signed: Annotated[
        Signed, OneOf("what must be signed; the assertion is always covered by one of the two", Signed)
    ] = Signed.EITHER
    encryption: Annotated[EncryptionSettings, Section("encrypted assertions", EncryptionSettings)] = field(
        default=EncryptionSettings()
    )
    algorithms: Annotated[
        frozenset[str],
        Algorithms("the signatures that are believed", among=tuple(ALGORITHMS), unset="all that are safe"),
    ] = frozenset(ALGORITHMS)
    clock_skew: Annotated[timedelta, ClockSkew("how far the clocks may differ; `5m` at most")] = CLOCK_SKEW
    single_logout: Annotated[
        bool, Flag("whether signing out here signs out at the identity system, too, where it and `keyFile` allow it")
    ] = True
    renewal: RenewalSetting = Renewal.DEFAULT
