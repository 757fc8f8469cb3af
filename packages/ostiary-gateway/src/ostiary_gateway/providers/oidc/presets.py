"""The base of the identity providers for issuers that are known by name: ``google``, ``keycloak`` and the like.

    identity: [{name: staff, type: keycloak, url: https://sso.example.com, realm: acme, clientID: gateway, ...}]

Each of them is `oidc` with the issuer, scopes and claims that its few settings imply, and with a reader of claims that
knows the issuer's habits. Called by their `from_config`.
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
        """The provider that *settings* describe; what is wrong with the secret and the authorities is noted."""
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
    """*url* without a slash at its end; what is wrong with the setting *key* is noted."""
    if url and ((parts := usable_url(url, plain=True)) is None or parts.query):
        fields.problem("it is not a https URL without a query", key, "plain http is for this machine only")
    return url.rstrip("/")


def wants_refresh_token(settings: NamedIssuerSettings, *, wanted: bool) -> bool:
    """Whether to ask for one: not where nothing is renewed."""
    return wanted and settings.renewal is not Renewal.SIGN_IN


# People sign in with Auth0: `oidc`, with what Auth0 does in its own way.
#
#     identity: [{name: staff, type: auth0, domain: acme.eu.auth0.com, clientID: ..., clientSecretFile: ...}]
#
# Its issuer ends with a slash. Groups and roles are in no token unless an Action adds them, under a name with a
# namespace. Whoever asks for an organisation must compare the claim, since the page alone proves nothing.

ORGANIZATION_ID = "org_"


@dataclass(frozen=True, slots=True)
class Auth0Claims:
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


# People sign in with GitLab: `oidc`, with what GitLab does in its own way.
#
#     identity: [{name: staff, type: gitlab, url: https://gitlab.example.com, clientID: ..., clientSecretFile: ...}]
#
# GitLab says who somebody is and all of their groups at its UserInfo endpoint; the groups that somebody is a direct
# member of stand in the ID token alone. Groups are full paths: ``acme/platform``. Whoever is in no group has an empty
# list, so a claim that is missing is an error and nobody without groups.


@dataclass(frozen=True, slots=True)
class GitLabClaims:
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
            # With `openid` alone the address would be the one that people choose to show.
            scopes=(EMAIL,) if settings.username == EMAIL else (),
            user_info=True,
        )


# People sign in with Google: `oidc`, with what Google does in its own way.
#
#     identity: [{name: staff, type: google, clientID: ..., clientSecretFile: ..., hostedDomains: [example.com]}]
#
# The username is the e-mail address, if Google has verified it and is the one to say whose it is; the uid is ``sub``.
# Asking Google for a domain (``hd``) only chooses what its page offers, so the claim is compared. Groups are not in the
# tokens: the group provider ``google`` asks for them. Called by the gateway at sign-ins and renewals.

GMAIL = "@gmail.com"
CONSENT = "consent"
_NAMES = ClaimNames(username="email", uid="sub")


@dataclass(frozen=True, slots=True)
class GoogleClaims:
    """Accounts of *hosted_domains*; where there are none, every account whose address Google itself answers for."""

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
            # Google verified such an address once, and does not hear of its next owner.
            raise LoginRefused(
                "your e-mail address cannot be used",
                cause="Google does not answer for it: it is neither of Gmail nor of a Workspace domain",
            )
        return user

    def produces(self) -> Produces:
        return _NAMES.produces()


class GoogleIdentity(NamedIssuerIdentity):
    ISSUER = "https://accounts.google.com"
    # Google knows neither `prompt=login` nor `max_age`, and does not say when somebody signed in.
    steps_up = False

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(GoogleIdentitySettings, fields, context.directory)
        domains = tuple(domain.lower() for domain in settings.hosted_domains)
        # Google's page offers accounts of one domain, or with a star of any Workspace.
        parameters = {"hd": domains[0] if len(domains) == 1 else "*"} if domains else {}
        prompt = settings.prompt
        if wants_refresh_token(settings, wanted=settings.refresh_tokens):
            parameters["access_type"] = "offline"
            # A refresh token comes with the first consent, and then only if consent is asked for again.
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


# People sign in with Keycloak: `oidc`, with what Keycloak does in its own way.
#
#     identity: [{name: staff, type: keycloak, url: https://sso.example.com, realm: acme, clientID: gateway, ...}]
#
# The issuer is URL/realms/REALM. Groups come from a mapper, as paths: ``/team/blue``. Roles are not groups, so those
# that are wanted get names that no group has. A refresh token comes with every sign-in and ends with the session in
# Keycloak.

REALM_ROLE, CLIENT_ROLE = "realm-role:", "client-role:"


@dataclass(frozen=True, slots=True)
class KeycloakClaims:
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
            # Without the slash, a group can have the name of a role.
            raise ProviderError(
                "the groups of this user are unknown",
                cause="a group is called like a role",
                hint="let the mapper Group Membership send full paths, and keep the leading slash",
            )
        return group

    def _roles(self, claims: Mapping[str, object]) -> Iterator[str]:
        if self.realm_roles:
            # Everybody has one: default-roles-REALM. So without any, the claim is not in the token at all.
            if "realm_access" not in claims:
                raise ProviderError(
                    "the groups of this user are unknown",
                    cause="the ID token has no realm_access",
                    hint="let the mapper realm roles, in the client scope roles, add to the ID token",
                )
            yield from (f"{REALM_ROLE}{role}" for role in _roles_in(claims, "realm_access"))
        clients = claims.get("resource_access")
        for client in self.client_roles:
            # Keycloak names only the clients in which somebody has a role.
            if isinstance(clients, dict) and client in clients:
                yield from (f"{CLIENT_ROLE}{client}:{role}" for role in _roles_in(clients, client))


def _roles_in(claims: Mapping[str, object], name: str) -> tuple[str, ...]:
    roles = claims[name]
    if not isinstance(roles, dict):
        raise ProviderError("the issuer's answer cannot be used", cause=f'"{name}" has no roles')
    return texts_of("roles", roles)


class KeycloakIdentity(NamedIssuerIdentity):
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


# People sign in with Microsoft Entra ID: `oidc`, with what Microsoft does in its own way.
#
#     identity: [{name: staff, type: microsoft, tenant: 11111111-..., clientID: ..., clientSecretFile: ...}]
#
# The uid is ``oid``, which never changes, and so is the username unless the operator wants an address. Where accounts
# of several tenants sign in, each token is verified as one of its own tenant, by that tenant's keys, and the username
# ends with the tenant's ID. A token that leaves groups out because there are too many is an error and nobody without
# groups.

TENANT_ID = "{tenantid}"


def issuer_of(authority: str, tenant: str) -> str:
    """The name of a tenant's issuer, in version 2.0 of the endpoints."""
    return f"{authority}/{tenant}/v2.0"


@dataclass(frozen=True, slots=True)
class MicrosoftClaims:
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
        # An `oid` is unique in its tenant; nothing says that no other tenant can have the same.
        return replace(user, username=f"{user.username}@{tenant}") if self.with_tenant else user

    def produces(self) -> Produces:
        return self.names.produces()


class IdTokensOfTenants:
    """Believes ID tokens of *tenants* and of no others, each by the name and the keys of its own issuer.

    The claim ``tid`` says which one to ask, before anything is verified; a token that names another tenant than the one
    that signed it fails as a forgery there.
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
        # Without `profile` there is neither an `oid` nor a `tid`.
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


# People sign in with Okta: `oidc`, with what Okta does in its own way.
#
#     identity: [{name: staff, type: okta, domain: acme.okta.com, clientID: ..., clientSecretFile: ...}]
#
# The organisation's own authorization server is the issuer https://DOMAIN, and knows the scope ``groups``; a custom one
# is https://DOMAIN/oauth2/ID, and has the scopes and claims that somebody has made there. With a code Okta gives an ID
# token that lacks most claims, so they come from UserInfo. Its filters end at 100 groups without a word.

MOST_GROUPS = 100


@dataclass(frozen=True, slots=True)
class OktaClaims:
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
    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(OktaSettings, fields, context.directory)
        server, offline = settings.authorization_server, wants_refresh_token(settings, wanted=settings.refresh_tokens)
        scopes = (
            "profile",
            *((EMAIL,) if settings.username == EMAIL else ()),
            # A custom server refuses a scope that nobody has made there.
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
