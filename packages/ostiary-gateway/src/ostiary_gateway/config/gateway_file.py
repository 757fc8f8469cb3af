"""The fields of ``gateway.yaml``: the declarations of all sections.

`config.loading` reads it, and `config.schema` and the reference derive from it. An entry that becomes a provider has
its `fields`, from which the provider reads its own settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import SplitResult

from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigSection
from ostiary_gateway.config.accounts import ApiTokenSettings, ServiceAccountSettings
from ostiary_gateway.config.api_plugins import ApiPluginSettings
from ostiary_gateway.config.audit import Audit
from ostiary_gateway.config.branding import ICONS, PagesSettings, check_image
from ostiary_gateway.config.extauth import DoorSettings
from ostiary_gateway.config.gateway_config import DecisionSettings, Log, TokenSettings, Webhooks
from ostiary_gateway.config.issuer import JwtIssuerSettings
from ostiary_gateway.config.kinds import (
    EntryName,
    PolicyUpstreams,
    ProviderEntries,
    ProviderEntry,
    TypeName,
    TypeOrEntry,
)
from ostiary_gateway.config.listen import HealthSettings, Listen
from ostiary_gateway.config.provider import OnError
from ostiary_gateway.config.step_up import StepUpSettings
from ostiary_gateway.config.tracing import Tracing
from ostiary_gateway.config.upstream import UpstreamSettings
from ostiary_gateway.limits.settings import LimitSettings
from ostiary_gateway.settings.declare import RawFields
from ostiary_gateway.settings.kinds import AnyText, Constant, FilePath, Flag, Holds, Names, OneOf, Parsed, Text, Word
from ostiary_gateway.settings.outgoing import bad_authorities, parse_origin
from ostiary_gateway.settings.sections import OptionalSection, Section, Sections

API_VERSION = "ostiary.dev/v1"
KIND = "Gateway"

_TYPE_OR_PROVIDER: Mapping[str, object] = {"oneOf": [{"required": ["type"]}, {"required": ["provider"]}]}
_NAME = "small letters, digits and dashes; unique in its list"
_TYPE = "a bundled type, or one of an installed package (entry point `ostiary.{}`)"

# Attributes mapper of an upstream without one.
DEFAULT_ATTRIBUTES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
    type: Annotated[str, TypeName(_TYPE.format("token_store"))]
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributesEntry:
    type: Annotated[str, TypeName(_TYPE.format("attributes"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityEntry:
    """One entry of ``identity``: an identity provider before it is built."""

    name: Annotated[
        str,
        EntryName(f"{_NAME}; part of a URL, so not `groups`, `provider`, `renew`, `logout` and the like"),
    ]
    type: Annotated[str, TypeName(_TYPE.format("identity"))]
    display_name: Annotated[
        str, Text("what people read on buttons and pages: `Acme single sign-on`", unset="the name")
    ] = ""
    icon: Annotated[
        str, Word("a bundled icon on its button", ICONS, unset="one for the way in which people sign in")
    ] = ""
    icon_file: Annotated[
        Path | None,
        FilePath("in place of `icon`: an image of your own, as `pages.logo`; a square one", unset="none"),
    ] = None
    prefix: Annotated[
        str | None,
        AnyText(
            "goes before each username. No prefix may be the beginning of another, so that users of two entries never"
            ' have the same name; one of several may be `""`, and those of its users whose names begin with the prefix'
            " of another entry are refused. So are usernames that begin with `system:`, and everybody whose name, uid"
            " or groups no header can carry (control characters, a space at an end)",
            unset="none for a single entry; required if there are several",
        ),
    ] = None
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)

    def check(self, fields: ConfigSection) -> None:
        if self.icon and self.icon_file is not None:
            fields.problem("there are two icons", "iconFile", "leave out icon or iconFile")
        if self.icon_file is not None and fields.is_right("iconFile"):
            check_image(self.icon_file, fields, "iconFile")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """One entry of ``groups``: a group provider before it is built."""

    SCHEMA: ClassVar[Mapping[str, object]] = _TYPE_OR_PROVIDER

    name: Annotated[str, EntryName(_NAME)]
    type: Annotated[str, TypeName(_TYPE.format("group"))] = ""
    provider: Annotated[
        str,
        Text(
            "in place of `type`: the name of an identity provider whose object answers for groups too. It is asked"
            " about its own users, and sees usernames as it gave them",
            unset="none",
        ),
    ] = ""
    prefix: Annotated[str, AnyText("goes before each of its groups", unset="none")] = ""
    identities: Annotated[
        tuple[str, ...], Names("the identity providers whose users it is asked about", unset="all")
    ] = ()
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationEntry:
    """One entry of ``authorization.chain``: an authorization provider before it is built."""

    SCHEMA: ClassVar[Mapping[str, object]] = _TYPE_OR_PROVIDER

    name: Annotated[str, EntryName(_NAME)]
    type: Annotated[str, TypeName(_TYPE.format("authorization"))] = ""
    provider: Annotated[
        str, Text("in place of `type`: the name of an identity provider whose object decides too", unset="none")
    ] = ""
    on_error: Annotated[
        OnError,
        OneOf("what a failure means: `Deny` ends the chain with an error, `NoOpinion` asks the next", OnError),
    ] = OnError.DENY
    upstreams: Annotated[
        frozenset[str] | str | None,
        PolicyUpstreams(
            "the upstreams that its policy is for, as in `[dev]`; for a request to another one it has no opinion."
            " `all`: its policy is meant for all of them. See [below](#a-policy-for-each-upstream)",
            unset="all",
        ),
    ] = None
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionEntry:
    name: Annotated[str, EntryName(_NAME)]
    type: Annotated[str, TypeName(_TYPE.format("admission"))]
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamEntry(UpstreamSettings):
    """One entry of ``upstreams``."""

    name: Annotated[str, EntryName(_NAME)]
    server: Annotated[
        str,
        Text(
            "`https://host:port`, `http://host:port`, `unix:/path`; no path. Left out: other proxies carry the requests"
            " to it, and ask at one of `doors`",
            unset="none",
        ),
    ] = ""
    insecure: Annotated[bool, Flag("plain HTTP is for the loopback only, unless this is `true`")] = False
    attributes: Annotated[
        str | ConfigSection,
        TypeOrEntry("how requests are understood (entry point `ostiary.attributes`)", "attributes"),
    ] = DEFAULT_ATTRIBUTES
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationFile(DecisionSettings):
    chain: Annotated[
        tuple[AuthorizationEntry, ...],
        ProviderEntries(
            "asked in this order; the first yes or no counts, and the end of the chain is a no",
            AuthorizationEntry,
            "One provider.",
            least=1,
            plugin_type="authorization",
            missing="required: without a provider every request is denied",
            missing_hint="chain: [{name: everything, type: allow_all}] allows everything",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFile:
    """The declared settings of ``gateway.yaml``."""

    api_version: Annotated[str, Constant("the version of this file's format", API_VERSION)]
    kind: Annotated[str, Constant("the kind of this file", KIND)]
    listen: Annotated[Listen, Section("where the gateway listens", Listen)]
    external_url: Annotated[
        SplitResult | None,
        Parsed(
            "what browsers and programs call the gateway: scheme, host, port and nothing more; https, except on the"
            " loopback. Identity systems send people back there. Must be written where the address is `0.0.0.0` or"
            " `[::]`. A token store that replicas share belongs to the gateway of this URL",
            parse_origin,
            name="externalURL",
            pattern="^https?://[^/?#@ ]+/?$",
            hint="write it as in https://gateway.example.com",
            unset="from `listen`",
            kind="URL",
        ),
    ] = None
    external_ca: Annotated[
        Path | None,
        FilePath(
            "a PEM file: the authority of the certificate that people see at `externalURL`. The kubeconfig and the"
            " commands of the sign-in page hold it, so that kubectl trusts the gateway. Not needed where the authority"
            " is a public one",
            name="externalCA",
            holds=Holds.CERTIFICATES,
            unset="none, or the self-signed certificate in the chain of `listen.tls.certificate`",
        ),
    ] = None
    insecure_allow_all: Annotated[
        bool,
        Flag(
            "with `single_user` and `allow_all` the gateway refuses an address that others can reach, and a trusted"
            " proxy; `true` means it"
        ),
    ] = False
    health: Annotated[HealthSettings, Section("where probes and metrics are answered", HealthSettings)]
    store: Annotated[
        StoreEntry | None,
        ProviderEntry(
            "where sessions and the digests of tokens are kept; left out: `sqlite`, in `ostiary.db` beside this file",
            StoreEntry,
            plugin_type="token_store",
            reload=False,
        ),
    ] = None
    tokens: Annotated[TokenSettings, Section("how long tokens live", TokenSettings, reload=False)]
    service_accounts: Annotated[
        ServiceAccountSettings, Section("the gateway's own service accounts, for programs", ServiceAccountSettings)
    ]
    api_tokens: Annotated[ApiTokenSettings, Section("named tokens that programs may hold", ApiTokenSettings)]
    identity: Annotated[
        tuple[IdentityEntry, ...],
        ProviderEntries("who can say who somebody is", IdentityEntry, "One provider.", plugin_type="identity"),
    ] = ()
    groups: Annotated[
        tuple[GroupEntry, ...],
        ProviderEntries("who can say which groups somebody is in", GroupEntry, "One provider.", plugin_type="group"),
    ] = ()
    pages: Annotated[PagesSettings, Section("how the pages look that people see", PagesSettings)]
    authorization: Annotated[AuthorizationFile, Section("who decides", AuthorizationFile)]
    upstreams: Annotated[tuple[UpstreamEntry, ...], Sections("where requests go", UpstreamEntry, "One upstream.")] = ()
    api_plugins: Annotated[
        ApiPluginSettings,
        Section("processes that serve API groups of their own beside a Kubernetes upstream", ApiPluginSettings),
    ]
    doors: Annotated[
        tuple[DoorSettings, ...],
        Sections("proxies that carry requests themselves and ask the gateway about each", DoorSettings, "One proxy."),
    ] = ()
    webhooks: Annotated[Webhooks, Section("the gateway as a webhook of Kubernetes", Webhooks)]
    issuer: Annotated[
        JwtIssuerSettings | None,
        OptionalSection(
            "the gateway as an OpenID Connect issuer: JWTs for clusters that verify them themselves; left out: none are"
            " signed",
            JwtIssuerSettings,
        ),
    ] = None
    audit: Annotated[
        Audit | None,
        OptionalSection("what is recorded; left out: every request at level Metadata, on standard output", Audit),
    ] = None
    limits: Annotated[
        LimitSettings,
        Section("so that nobody uses up what all share; `0`: no limit", LimitSettings, reload=False),
    ]
    admission: Annotated[
        tuple[AdmissionEntry, ...],
        ProviderEntries(
            "what allowed requests must also pass", AdmissionEntry, "One provider.", plugin_type="admission"
        ),
    ] = ()
    step_up: Annotated[
        StepUpSettings,
        Section(
            "for which requests people must have signed in how, and how recently:"
            " [require a second factor](../how-to/require-a-second-factor.md)",
            StepUpSettings,
        ),
    ]
    log: Annotated[Log, Section("the gateway's own log, on standard error", Log)]
    tracing: Annotated[
        Tracing | None,
        OptionalSection(
            "traces of requests, with OpenTelemetry (the extra `otel`); left out: nothing is traced, and a"
            " `traceparent` passes to the upstream like any other header",
            Tracing,
        ),
    ] = None

    def check(self, fields: ConfigSection) -> None:
        if self.external_ca is not None and (mistake := bad_authorities(self.external_ca)):
            fields.problem(mistake, "externalCA")
        url = self.external_url
        if url is not None and url.scheme == "http" and not is_loopback(url.hostname or ""):
            fields.problem("users would sign in over plain text", "externalURL", "begin it with https://")
