"""Identity providers with presets for well-known issuers: Auth0, GitLab, Google, Keycloak, Microsoft Entra ID, Okta.

    identity: [{name: staff, type: keycloak, url: https://sso.example.com, realm: acme, clientID: gateway, ...}]

Each is `oidc` with the issuer, scopes and claims that its few settings imply, and with a claims reader for the
issuer's peculiarities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

from ostiary.core.clock import Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import Produces
from ostiary_gateway.providers.common.jwt import Claims, TokenRefused, TokenRules, parse_token
from ostiary_gateway.providers.common.jwt_issuer import Issuer, outbound_to_issuer, usable_url
from ostiary_gateway.providers.common.outbound import Outbound
from ostiary_gateway.providers.common.refresh import Renewal
from ostiary_gateway.providers.oidc.claims import ClaimNames, ReadsClaims, text_of, texts_of
from ostiary_gateway.providers.oidc.identity import OidcIdentity
from ostiary_gateway.providers.oidc.preset_settings import (
    DIRECT,
    EMAIL,
    GROUPS,
    OID,
    SUB,
    Auth0Settings,
    GitLabSettings,
    GoogleIdentitySettings,
    KeycloakSettings,
    MicrosoftSettings,
    OktaSettings,
)
from ostiary_gateway.providers.oidc.settings import NamedIssuerSettings
from ostiary_gateway.providers.oidc.token_endpoint import IdTokens, IdTokensOfIssuer
from ostiary_gateway.settings.declare import read_settings

OFFLINE_ACCESS = "offline_access"


class NamedIssuerIdentity(OidcIdentity):
    """An `OidcIdentity` with the issuer, scopes and claims of a preset."""

    @classmethod
    def build(
        cls,
        settings: NamedIssuerSettings,
        fields: ConfigSection,
        context: Context,
        *,
        issuer: str,
        claims: ReadsClaims,
        scopes: Iterable[str] = (),
        user_info: bool = False,
        prompt: str = "",
        parameters: Mapping[str, str] = MappingProxyType({}),
        announced_issuer: str = "",
        id_tokens: IdTokens | None = None,
        outbound: Outbound | None = None,
    ) -> Self:
        """Return the provider that *settings* describe. Errors in the secret and the authorities go to *fields*."""
        provider = cls(
            issuer=issuer,
            client_id=settings.client_id,
            client_secret_file=settings.client_secret_file,
            scopes=scopes,
            claims=claims,
            user_info=user_info,
            clock_skew=settings.clock_skew,
            prompt=prompt or settings.prompt,
            response_mode=settings.response_mode,
            pushed_authorization=settings.pushed_authorization,
            front_channel_logout=settings.front_channel_logout,
            ends_session=settings.end_session,
            parameters=parameters,
            announced_issuer=announced_issuer,
            id_tokens=id_tokens,
            renewal=settings.renewal,
            outbound=outbound or outbound_to_issuer(settings.ca, fields),
            clock=context.clock,
        )
        provider._client.check(fields)
        return provider


def check_url(url: str, fields: ConfigSection, key: str) -> str:
    """Return *url* without a trailing slash. An invalid URL is reported for the setting *key*."""
    if url and ((parts := usable_url(url, plain=True)) is None or parts.query):
        fields.problem("it is not a https URL without a query", key, "plain http is for this machine only")
    return url.rstrip("/")


def wants_refresh_token(settings: NamedIssuerSettings, *, wanted: bool) -> bool:
    """Return whether to request a refresh token. It is useless if sessions are not refreshed."""
    return wanted and settings.renewal is not Renewal.SIGN_IN


# Auth0.
#
#     identity: [{name: staff, type: auth0, domain: acme.eu.auth0.com, clientID: ..., clientSecretFile: ...}]
#
# The issuer ends with a slash. Groups and roles are in no token unless an Action adds them, under a namespaced name.
# The `organization` parameter only selects a login page and proves nothing, so the claim must be compared.

ORGANIZATION_ID = "org_"


@dataclass(frozen=True, slots=True)
class Auth0Claims:
    """Read a user from the claims of Auth0."""

    names: ClaimNames
    organization: str = ""

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object]) -> UserInfo:
        claim = "org_id" if self.organization.startswith(ORGANIZATION_ID) else "org_name"
        if self.organization and claims.get(claim) != self.organization:
            raise LoginRefused(
                "this account does not belong to an allowed organisation",
                cause=f'the claim "{claim}" does not name the organisation of the settings',
            )
        return self.names.user(claims)

    def produces(self) -> Produces:
        return self.names.produces()


class Auth0Identity(NamedIssuerIdentity):
    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(Auth0Settings, fields, context.directory)
        offline = wants_refresh_token(settings, wanted=settings.refresh_tokens)
        organization = settings.organization
        return cls.build(
            settings,
            fields,
            context,
            issuer=f"https://{settings.domain}/",
            claims=Auth0Claims(ClaimNames(username=settings.username, uid="sub", groups=settings.groups), organization),
            scopes=(*((EMAIL,) if settings.username == EMAIL else ()), *((OFFLINE_ACCESS,) if offline else ())),
            parameters={"organization": organization} if organization else {},
        )


# GitLab.
#
#     identity: [{name: staff, type: gitlab, url: https://gitlab.example.com, clientID: ..., clientSecretFile: ...}]
#
# The UserInfo endpoint returns the user and all of their groups; direct memberships are in the ID token only. Groups
# are full paths: ``acme/platform``. A user without groups has an empty list, so a missing claim is an error.


@dataclass(frozen=True, slots=True)
class GitLabClaims:
    """Read a user from the claims of GitLab."""

    username: str
    direct: bool
    allowed_groups: frozenset[str] | None

    @property
    def _names(self) -> ClaimNames:
        return ClaimNames(username=self.username, uid=SUB, groups="groups_direct" if self.direct else "groups")

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object]) -> UserInfo:
        names = self._names
        groups = (id_token if self.direct else claims).get(names.groups)
        if groups is None:
            raise ProviderError(
                "the groups of this user are unknown",
                cause=f'GitLab leaves out the claim "{names.groups}"',
                hint="the application needs the scope openid; groups: direct needs GitLab 14.2",
            )
        user = names.user({**claims, names.groups: groups})
        if self.allowed_groups is not None and not self.allowed_groups & set(user.groups):
            raise LoginRefused("your GitLab account is not a member of an allowed group", cause="no membership")
        return user

    def produces(self) -> Produces:
        return self._names.produces()


class GitLabIdentity(NamedIssuerIdentity):
    """The identity provider ``gitlab``."""

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(GitLabSettings, fields, context.directory)
        allowed = settings.allowed_groups
        return cls.build(
            settings,
            fields,
            context,
            issuer=check_url(settings.url, fields, "url"),
            claims=GitLabClaims(
                settings.username, settings.groups == DIRECT, None if allowed is None else frozenset(allowed)
            ),
            # With `openid` alone, the claim holds the address that the user chose to publish.
            scopes=(EMAIL,) if settings.username == EMAIL else (),
            user_info=True,
        )


# Google.
#
#     identity: [{name: staff, type: google, clientID: ..., clientSecretFile: ..., hostedDomains: [example.com]}]
#
# The username is the e-mail address, if Google has verified it and is authoritative for it; the uid is ``sub``. The
# request parameter ``hd`` only changes which accounts Google's page offers, so the claim must be compared. Groups are
# not in the tokens: the group provider ``google`` queries them.

GMAIL = "@gmail.com"
CONSENT = "consent"
_NAMES = ClaimNames(username="email", uid="sub")


@dataclass(frozen=True, slots=True)
class GoogleClaims:
    """Accept accounts of *hosted_domains*; if empty, every account whose address Google is authoritative for."""

    hosted_domains: frozenset[str]

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object]) -> UserInfo:
        domain = claims.get("hd")
        domain = domain.lower() if isinstance(domain, str) else ""
        if self.hosted_domains and domain not in self.hosted_domains:
            raise LoginRefused(
                "this Google account does not belong to an allowed organisation",
                cause="its hosted domain (hd) is not one of hostedDomains",
            )
        user = _NAMES.user(claims)
        if not domain and not user.username.lower().endswith(GMAIL):
            # Google verified such an address once and does not notice when it gets another owner.
            raise LoginRefused(
                "your e-mail address cannot be used",
                cause="Google does not answer for it: it is neither of Gmail nor of a Workspace domain",
            )
        return user

    def produces(self) -> Produces:
        return _NAMES.produces()


class GoogleIdentity(NamedIssuerIdentity):
    """The identity provider ``google``."""

    ISSUER = "https://accounts.google.com"
    # Google supports neither `prompt=login` nor `max_age`, and sends no `auth_time`.
    steps_up = False

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(GoogleIdentitySettings, fields, context.directory)
        domains = tuple(domain.lower() for domain in settings.hosted_domains)
        # Google's page offers accounts of one domain, or with `*` of any Workspace domain.
        parameters = {"hd": domains[0] if len(domains) == 1 else "*"} if domains else {}
        prompt = settings.prompt
        if wants_refresh_token(settings, wanted=settings.refresh_tokens):
            parameters["access_type"] = "offline"
            # Google sends a refresh token with the first consent, and again only if consent is requested again.
            prompt = " ".join(dict.fromkeys((*prompt.split(), CONSENT)))
        return cls.build(
            settings,
            fields,
            context,
            issuer=cls.ISSUER,
            claims=GoogleClaims(frozenset(domains)),
            scopes=("email",),
            prompt=prompt,
            parameters=parameters,
        )


# Keycloak.
#
#     identity: [{name: staff, type: keycloak, url: https://sso.example.com, realm: acme, clientID: gateway, ...}]
#
# The issuer is URL/realms/REALM. Groups come from a mapper, as paths: ``/team/blue``. Roles are not groups, so the
# requested roles get a prefix that no group may have. Every sign-in returns a refresh token, which ends with the
# Keycloak session.

REALM_ROLE, CLIENT_ROLE = "realm-role:", "client-role:"


@dataclass(frozen=True, slots=True)
class KeycloakClaims:
    """Read a user from the claims of Keycloak."""

    names: ClaimNames
    leading_slash: bool = True
    realm_roles: bool = False
    client_roles: tuple[str, ...] = ()

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object]) -> UserInfo:
        user = self.names.user(claims)
        groups = (*map(self._group, user.groups), *self._roles(claims))
        return replace(user, groups=tuple(dict.fromkeys(groups)))

    def produces(self) -> Produces:
        return self.names.produces()

    def _group(self, name: str) -> str:
        group = name if self.leading_slash else name.removeprefix("/")
        if group.startswith((REALM_ROLE, CLIENT_ROLE)):
            # Without its leading slash, a group could be named like a prefixed role and grant that role's rights.
            raise ProviderError(
                "the groups of this user are unknown",
                cause="a group is called like a role",
                hint="let the mapper Group Membership send full paths, and keep the leading slash",
            )
        return group

    def _roles(self, claims: Mapping[str, object]) -> Iterator[str]:
        if self.realm_roles:
            # Every user has default-roles-REALM, so a missing claim means that the mapper does not add it to the token.
            if "realm_access" not in claims:
                raise ProviderError(
                    "the groups of this user are unknown",
                    cause="the ID token has no realm_access",
                    hint="let the mapper realm roles, in the client scope roles, add to the ID token",
                )
            yield from (f"{REALM_ROLE}{role}" for role in _roles_in(claims, "realm_access"))
        clients = claims.get("resource_access")
        for client in self.client_roles:
            # Keycloak lists only the clients in which the user has a role.
            if isinstance(clients, dict) and client in clients:
                yield from (f"{CLIENT_ROLE}{client}:{role}" for role in _roles_in(clients, client))


def _roles_in(claims: Mapping[str, object], name: str) -> tuple[str, ...]:
    roles = claims[name]
    if not isinstance(roles, dict):
        raise ProviderError("the issuer's answer cannot be used", cause=f'"{name}" has no roles')
    return texts_of("roles", roles)


class KeycloakIdentity(NamedIssuerIdentity):
    """The identity provider ``keycloak``."""

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(KeycloakSettings, fields, context.directory)
        offline = wants_refresh_token(settings, wanted=settings.offline_access)
        return cls.build(
            settings,
            fields,
            context,
            issuer=f"{check_url(settings.url, fields, 'url')}/realms/{settings.realm}",
            claims=KeycloakClaims(
                ClaimNames(username=settings.username, uid="sub", groups=settings.groups),
                settings.leading_slash,
                settings.realm_roles,
                settings.client_roles,
            ),
            scopes=(
                "profile",
                *((EMAIL,) if settings.username == EMAIL else ()),
                *((OFFLINE_ACCESS,) if offline else ()),
            ),
        )


# Microsoft Entra ID.
#
#     identity: [{name: staff, type: microsoft, tenant: 11111111-..., clientID: ..., clientSecretFile: ...}]
#
# The uid is ``oid``, which never changes, and so is the username unless the operator selects an address. With several
# tenants, each token is verified against the issuer and keys of its own tenant, and the username ends with the tenant's
# ID. A token that omits groups because there are too many is an error, not a user without groups.

TENANT_ID = "{tenantid}"


def issuer_of(authority: str, tenant: str) -> str:
    """Return the issuer of a tenant, for version 2.0 of the endpoints."""
    return f"{authority}/{tenant}/v2.0"


@dataclass(frozen=True, slots=True)
class MicrosoftClaims:
    """Read a user from the claims of Microsoft Entra ID."""

    names: ClaimNames
    with_tenant: bool = False

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object]) -> UserInfo:
        tenant = text_of("tid", claims)
        if not text_of(OID, claims) or not tenant:
            raise LoginRefused("the issuer returned no usable user name", cause="there is no oid, or no tid")
        if self.names.groups == GROUPS and claims.get("hasgroups"):
            raise ProviderError(
                "the groups of this user are unknown",
                cause="Entra ID says that there are groups (hasgroups), and leaves them out",
                hint="let Entra ID send only the groups that are assigned to this application, or use groups: roles",
            )
        user = self.names.user(claims)
        # An `oid` is unique within its tenant only.
        return replace(user, username=f"{user.username}@{tenant}") if self.with_tenant else user

    def produces(self) -> Produces:
        return self.names.produces()


class IdTokensOfTenants:
    """Verify ID tokens of *tenants*, each against the issuer and keys of its own tenant.

    The unverified claim ``tid`` selects the tenant. A token that names another tenant than the one that signed it fails
    signature verification.
    """

    def __init__(
        self, authority: str, tenants: Iterable[str], rules: TokenRules, outbound: Outbound, *, clock: Clock
    ) -> None:
        names = {tenant: issuer_of(authority, tenant) for tenant in tenants}
        self._by_tenant = {
            tenant: IdTokensOfIssuer(Issuer(name, outbound, clock=clock), replace(rules, issuer=name), clock=clock)
            for tenant, name in names.items()
        }

    async def verify(self, id_token: str, *, nonce: str | None, access_token: str | None) -> Claims:
        tenant = parse_token(id_token).claims.get("tid")
        believed = self._by_tenant.get(tenant) if isinstance(tenant, str) else None
        if believed is None:
            raise TokenRefused("its tenant (tid) is not one of allowedTenants")
        return await believed.verify(id_token, nonce=nonce, access_token=access_token)


class MicrosoftIdentity(NamedIssuerIdentity):
    """The identity provider ``microsoft``."""

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(MicrosoftSettings, fields, context.directory)
        authority, tenant = check_url(settings.authority, fields, "authority"), settings.tenant.lower()
        outbound = outbound_to_issuer(settings.ca, fields)
        id_tokens = None
        if settings.has_many_tenants:
            rules = TokenRules(
                issuer=None,
                audiences=frozenset((settings.client_id,)),
                client_id=settings.client_id,
                skew=settings.clock_skew,
            )
            tenants = [each.lower() for each in settings.allowed_tenants]
            id_tokens = IdTokensOfTenants(authority, tenants, rules, outbound, clock=context.clock)
        # Without the scope `profile` the token has neither `oid` nor `tid`.
        offline = wants_refresh_token(settings, wanted=settings.refresh_tokens)
        return cls.build(
            settings,
            fields,
            context,
            issuer=issuer_of(authority, tenant),
            claims=MicrosoftClaims(
                ClaimNames(username=settings.username, uid=OID, groups=settings.groups),
                with_tenant=settings.has_many_tenants,
            ),
            scopes=("profile", *((OFFLINE_ACCESS,) if offline else ())),
            announced_issuer=issuer_of(authority, TENANT_ID) if settings.has_many_tenants else "",
            id_tokens=id_tokens,
            outbound=outbound,
        )


# Okta.
#
#     identity: [{name: staff, type: okta, domain: acme.okta.com, clientID: ..., clientSecretFile: ...}]
#
# The organisation's own authorization server is the issuer https://DOMAIN, which supports the scope ``groups``; a
# custom one is https://DOMAIN/oauth2/ID, with the scopes and claims configured there. In the code flow, Okta's ID token
# lacks most claims, so they come from UserInfo. Its group filters silently truncate the list at 100 groups.

MOST_GROUPS = 100


@dataclass(frozen=True, slots=True)
class OktaClaims:
    """Read a user from the claims of Okta."""

    names: ClaimNames

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object]) -> UserInfo:
        user = self.names.user(claims)
        if len(user.groups) == MOST_GROUPS:
            raise ProviderError(
                "the groups of this user are unknown",
                cause=f"Okta sends {MOST_GROUPS} groups, where its filters end: there may be more",
                hint="let the filter of the groups claim match fewer groups",
            )
        return user

    def produces(self) -> Produces:
        return self.names.produces()


class OktaIdentity(NamedIssuerIdentity):
    """The identity provider ``okta``."""

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(OktaSettings, fields, context.directory)
        server, offline = settings.authorization_server, wants_refresh_token(settings, wanted=settings.refresh_tokens)
        scopes = (
            "profile",
            *((EMAIL,) if settings.username == EMAIL else ()),
            # A custom server rejects a scope that is not defined there.
            *(() if server else ("groups",)),
            *((OFFLINE_ACCESS,) if offline else ()),
            *settings.scopes,
        )
        return cls.build(
            settings,
            fields,
            context,
            issuer=f"https://{settings.domain}{f'/oauth2/{server}' if server else ''}",
            claims=OktaClaims(ClaimNames(username=settings.username, uid="sub", groups=settings.groups)),
            scopes=scopes,
            user_info=True,
        )
