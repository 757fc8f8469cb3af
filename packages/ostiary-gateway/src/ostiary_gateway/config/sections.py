"""Build the parts of `GatewayConfig` from the fields of ``gateway.yaml``: create providers and resolve references.

`config.loading` calls it after reading the whole file, and then `config.checks` for rules across sections. Every error
is reported at its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any, TypeVar

from ostiary.core.yaml import ConfigReader, ConfigSection, Document, Node
from ostiary.model import Place
from ostiary_gateway.capabilities import has_trait
from ostiary_gateway.config.audit import Audit, AuditEntry
from ostiary_gateway.config.branding import MOST_ENCODED, Branding, image_or_none
from ostiary_gateway.config.certificate_files import certificate_pem, certificates, own_authorities
from ostiary_gateway.config.extauth import DoorSettings
from ostiary_gateway.config.file_checks import DEFAULT_STORE_FILE
from ostiary_gateway.config.gateway_config import DEFAULT_STORE_TYPE, AuthorizationSettings, DecisionSettings
from ostiary_gateway.config.gateway_file import (
    AdmissionEntry,
    AuthorizationEntry,
    AuthorizationFile,
    GatewayFile,
    GroupEntry,
    IdentityEntry,
    UpstreamEntry,
)
from ostiary_gateway.config.listen import Listen
from ostiary_gateway.config.provider import Authorization, Groups, Identity, Provider
from ostiary_gateway.config.providers import Builder
from ostiary_gateway.contract_violations import flaws
from ostiary_gateway.interfaces.admission import AdmissionProvider
from ostiary_gateway.interfaces.audit import AuditProvider
from ostiary_gateway.interfaces.authorization import HidesDenied
from ostiary_gateway.interfaces.identity import NeedsClientCertificate
from ostiary_gateway.settings.declare import settings_of
from ostiary_gateway.settings.sections import ProviderFlag, ProviderSettings

T = TypeVar("T")
NamedEntry = (
    IdentityEntry | GroupEntry | AuthorizationEntry | AdmissionEntry | AuditEntry | UpstreamEntry | DoorSettings
)
# Identity providers by name. None: it could not be built, which was already reported.
IdentitiesByName = Mapping[str, Identity | None]
# A provider's users sign in at /auth/<name>; these names have another meaning below /auth, now or soon.
RESERVED_NAMES = frozenset(
    (
        *(
            "provider",
            "groups",
            "renew",
            "logout",
            "login",
            "choose",
            "device",
            "token",
            "tokens",
            "session",
            "sessions",
        ),
        *("static", "start", "cli", "methods", "whoami", "kubeconfig", "admin", "application", "metadata"),
    )
)
NO_CLIENT_CERTIFICATES = "no client certificate is checked without listen.tls.clientCA"
DEFAULT_STORE = {"type": Node(DEFAULT_STORE_TYPE), "path": Node(DEFAULT_STORE_FILE)}


# --- external URL and pages ---


def external_url(file: GatewayFile, root: ConfigSection) -> str:
    """Return the URL that clients use for the gateway, derived from the listen address if it is not configured."""
    if file.external_url is not None:
        return file.external_url.geturl()
    address = file.listen.address
    if address.host in ("0.0.0.0", "::") and root.is_right("externalURL"):  # noqa: S104
        root.problem("required: it cannot be derived from the address", "externalURL")
    return f"{'http' if file.listen.tls is None else 'https'}://{address}"


def authorities_pem(file: GatewayFile) -> str | None:
    """Return the CA of the external URL in PEM. The CA of a self-signed chain needs no setting."""
    if file.external_ca is not None:
        authorities = [certificate_pem(each) for each in certificates(file.external_ca)]
        return "".join(authorities) or None
    return None if file.listen.tls is None else own_authorities(file.listen.tls.certificate)


def look(file: GatewayFile, root: ConfigSection, known: IdentitiesByName) -> Branding:
    """Return the branding, and check the total size of images, which are part of every page."""
    look = file.pages.look()
    images = [look.logo, look.favicon, *(provider.image for provider in known.values() if provider is not None)]
    if sum(map(len, images)) > MOST_ENCODED:
        mistake = f"the images of logo, favicon and iconFile have more than {MOST_ENCODED * 3 // 4096} KiB together"
        root.problem(mistake, "pages", "use smaller ones: each page holds them")
    return look


# --- providers ---


def store(file: GatewayFile, builder: Builder) -> Provider[Any] | None:
    if file.store is None:
        return builder.build("token_store", ConfigReader(Document(Node(dict(DEFAULT_STORE)))).root, name="store")
    return builder.build("token_store", file.store.fields, name="store")


def identities(file: GatewayFile, builder: Builder) -> IdentitiesByName:
    check_unique(file.identity)
    by_name: dict[str, Identity | None] = {}
    for entry in file.identity:
        fields, name = entry.fields, entry.name
        if name in RESERVED_NAMES:
            fields.problem("this name is reserved: the gateway uses it below /auth", "name")
        provider = builder.build("identity", fields, name=name)
        if provider is None:
            by_name.setdefault(name, None)
            continue
        if has_trait(provider.instance, NeedsClientCertificate) and lacks_client_certificates(file.listen, fields):
            fields.problem(NO_CLIENT_CERTIFICATES, "type")
        by_name.setdefault(
            name,
            Identity(
                *_parts(provider),
                prefix=_username_prefix(entry, alone=len({entry.name for entry in file.identity}) == 1),
                display_name=entry.display_name,
                icon=entry.icon,
                image=image_or_none(entry.icon_file),
            ),
        )
    return by_name


def _username_prefix(entry: IdentityEntry, *, alone: bool) -> str:
    if entry.prefix is None and not alone and entry.fields.is_right("prefix"):
        # No default is safe: that of a single provider would let users of two providers share a name, and any other one
        # would rename the users of the first provider when a second one is added.
        message = "required with several identity providers: it says what the usernames of this one begin with"
        hint = f'prefix: "{entry.name}:", or prefix: "" for the provider whose usernames are to stay as they were'
        entry.fields.problem(message, "prefix", hint)
    return entry.prefix or ""


def groups(file: GatewayFile, builder: Builder, known: IdentitiesByName) -> tuple[Groups, ...]:
    check_unique(file.groups)
    providers: list[Groups] = []
    for entry in file.groups:
        _check_restriction(entry, known)
        own, only = entry.provider, entry.identities
        if own and only:
            entry.fields.problem("an identity provider can look up only its own users", "identities")
        provider = (
            identity_as(entry.fields, "group", entry.name, own, known)
            if own
            else builder.build("group", entry.fields, name=entry.name)
        )
        if provider is not None:
            identities = (own,) if own else only
            providers.append(Groups(*_parts(provider), prefix=entry.prefix, identities=identities, own=bool(own)))
    return tuple(providers)


def _check_restriction(entry: GroupEntry, known: IdentitiesByName) -> None:
    if not entry.identities and "identities" in entry.fields:
        hint = "leave it out if that is meant"
        entry.fields.problem("an empty list would restrict nothing", "identities", hint)
    for other in entry.identities:
        if other not in known:
            entry.fields.problem(f'unknown identity provider "{other}"', "identities")


def authorization(file: AuthorizationFile, builder: Builder, known: IdentitiesByName) -> AuthorizationSettings:
    check_unique(file.chain)
    chain: list[Authorization] = []
    for entry in file.chain:
        upstreams = entry.upstreams if isinstance(entry.upstreams, frozenset) else None
        provider = (
            identity_as(entry.fields, "authorization", entry.name, entry.provider, known)
            if entry.provider
            else builder.build("authorization", entry.fields, name=entry.name)
        )
        if provider is not None:
            if has_trait(provider.instance, HidesDenied) and not file.hide_denied:
                message = "it has no effect without authorization.hideDenied: refusals are answered 403"
                entry.fields.problem(message, "hide", "set hideDenied: true below authorization, or leave out hide")
            is_said = entry.upstreams is not None
            chain.append(Authorization(*_parts(provider), on_error=entry.on_error, upstreams=upstreams, shared=is_said))
    decisions = {field.name: getattr(file, field.name) for field in dataclass_fields(DecisionSettings)}
    return AuthorizationSettings(tuple(chain), **decisions)


def admission(file: GatewayFile, builder: Builder) -> tuple[Provider[AdmissionProvider], ...]:
    check_unique(file.admission)
    providers = [builder.build("admission", entry.fields, name=entry.name) for entry in file.admission]
    return tuple(provider for provider in providers if provider is not None)


def audit(configured: Audit, builder: Builder, root: ConfigSection) -> tuple[Provider[AuditProvider], ...]:
    """Build the audit providers: those of ``log``, ``stdout`` and ``webhook`` first, and then the others."""
    check_unique(configured.sinks)
    providers = [
        *_audit_by_key(configured, builder, root),
        *(builder.build("audit", entry.fields, name=entry.name) for entry in configured.sinks),
    ]
    return tuple(provider for provider in providers if provider is not None)


def _audit_by_key(configured: Audit, builder: Builder, root: ConfigSection) -> Iterator[Provider[AuditProvider] | None]:
    """Build the providers that have their own key in the section."""
    for setting in settings_of(Audit):
        kind: object = setting.kind
        value = getattr(configured, setting.attribute)
        if isinstance(kind, ProviderSettings) and isinstance(value, ConfigSection):
            yield builder.build_for_key(kind.plugin_type, setting.name, value)
        elif isinstance(kind, ProviderFlag) and value:
            nothing = ConfigReader(Document(Node({})))
            yield builder.build_for_key(kind.plugin_type, setting.name, nothing.root)
            for problem in nothing.problems:
                root.problem(f"{setting.name}: {problem.message}", "audit", problem.hint)


def identity_as(
    fields: ConfigSection, plugin_type: str, name: str, identity_name: str, known: IdentitiesByName
) -> Provider[Any] | None:
    """Return an identity provider's object as another type of provider: one object may implement several types."""
    if fields.string("type"):
        fields.problem("either type or provider is set, not both", "provider")
    if identity_name not in known:
        fields.problem(f'unknown identity provider "{identity_name}"', "provider")
        return None
    identity = known[identity_name]
    if identity is None:
        return None  # already reported
    if mistakes := flaws(plugin_type, identity.instance):
        for flaw in mistakes:
            message = f'"{identity_name}" is not a valid {plugin_type} provider: {flaw.message}'
            fields.problem(message, "provider", flaw.hint)
        return None
    return Provider(name, identity.type, identity.instance, fields.place())


def check_unique(entries: Sequence[NamedEntry]) -> None:
    names: set[str] = set()
    for entry in entries:
        if entry.name in names and entry.fields.is_right("name"):
            entry.fields.problem("duplicate name", "name")
        names.add(entry.name)


def _parts(provider: Provider[T]) -> tuple[str, str, T, Place]:
    return provider.name, provider.type, provider.instance, provider.place


def lacks_client_certificates(listen: Listen, fields: ConfigSection) -> bool:
    """Report whether the listener is configured, without error, not to verify client certificates."""
    return (listen.tls is None or listen.tls.client_ca is None) and fields.is_right_at("listen.tls")
