"""The settings of the identity providers in `oidc.presets`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.providers.oidc.settings import (
    EMPTY_NAME,
    NamedIssuerSettings,
    host,
    refresh_tokens,
    scopes,
    username,
)
from ostiary_gateway.settings.kinds import AnyText, FilePath, Flag, Holds, Text, Texts, Word

PREFERRED_USERNAME, EMAIL, SUB = "preferred_username", "email", "sub"
# Auth0 silently drops a custom claim with such a name.
RESTRICTED = frozenset(("groups", "roles", "permissions", "entitlements", "org_id", "org_name"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth0Settings(NamedIssuerSettings):
    """The settings of the identity provider ``auth0``."""

    domain: Annotated[
        str,
        host("the domain of the tenant, or a custom one", missing="it is missing: the domain, acme.eu.auth0.com say"),
    ]
    username: Annotated[str, username("the claim with the username; `sub` never changes", (SUB, EMAIL))] = SUB
    groups: Annotated[
        str,
        Text(
            "the claim with the groups or roles, which an Action adds: `https://example.com/groups`",
            empty=EMPTY_NAME,
            unset="none",
        ),
    ] = ""
    organization: Annotated[
        str,
        Text("the ID or the name of the Auth0 organisation whose members alone are let in", empty="", unset="none"),
    ] = ""
    refresh_tokens: Annotated[bool, refresh_tokens("this is the scope `offline_access`")] = True

    def check(self, fields: ConfigSection) -> None:
        if self.groups in RESTRICTED:
            message = f'Auth0 adds no claim "{self.groups}" to its tokens, and does not say so'
            hint = f"give it a name with a namespace in the Action: https://example.com/{self.groups}"
            fields.problem(message, "groups", hint)


GITLAB = "https://gitlab.com"
PREFERRED_USERNAME, EMAIL, SUB = "preferred_username", "email", "sub"
ALL, DIRECT = "all", "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class GitLabSettings(NamedIssuerSettings):
    """The settings of the identity provider ``gitlab``."""

    url: Annotated[str, Text("the URL of a self-managed GitLab", empty="")] = GITLAB
    username: Annotated[
        str,
        username(
            "the claim with the username. People can change their `preferred_username`, and it is free again then;"
            " `sub` is a number that never changes",
            (PREFERRED_USERNAME, EMAIL, SUB),
        ),
    ] = PREFERRED_USERNAME
    groups: Annotated[
        str,
        Word(
            "which groups count: `all`, also those that somebody is in because of a group above it, or `direct` ones",
            (ALL, DIRECT),
            mistake=f"it must be {ALL} or {DIRECT}",
            hint="",
            empty="",
        ),
    ] = ALL
    allowed_groups: Annotated[
        tuple[str, ...] | None,
        Texts(
            "only members of one of these groups are let in, by their full paths",
            empty="it names no group",
            empty_list="an empty list restricts nothing: remove it if that is intended",
            unset="everybody",
        ),
    ] = None


APIS = ("cloudIdentity", "directory")
EMPTY_LIST = "an empty list restricts nothing: remove it if that is intended"
BAD_ENDPOINT = "it must be a https URL"
BAD_API = f"it must be {' or '.join(APIS)}"


DOMAIN = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleIdentitySettings(NamedIssuerSettings):
    """The settings of the identity provider ``google``."""

    hosted_domains: Annotated[
        tuple[str, ...],
        Texts(
            "only accounts of these Workspace domains are let in",
            pattern=DOMAIN,
            mistake="it is not a domain",
            empty="it is not a domain",
            empty_list="an empty list lets nobody in",
            unset="none: `anyAccount`",
        ),
    ] = ()
    any_account: Annotated[
        bool, Flag("everybody who has a Google account is let in, without `hostedDomains`: policy alone decides")
    ] = False
    refresh_tokens: Annotated[bool, refresh_tokens("Google then asks for consent at each sign-in")] = True

    def check(self, fields: ConfigSection) -> None:
        if self.prompt == "login":
            fields.problem("Google does not know it", "prompt", "it knows consent and select_account")
        if not fields.is_right("hostedDomains", "anyAccount"):
            return
        if not self.hosted_domains and not self.any_account:
            message = "it is missing: the Workspace domains whose accounts are let in"
            hint = "anyAccount: true lets in everybody who has a Google account"
            fields.problem(message, "hostedDomains", hint)
        if self.hosted_domains and self.any_account:
            fields.problem("it contradicts hostedDomains", "anyAccount", "leave out one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleGroupSettings:
    """The settings of the group provider ``google``."""

    key_file: Annotated[
        Path | None,
        FilePath(
            "the JSON key of a service account; this or `consent`",
            holds=Holds.SECRET,
            checked=False,
            empty="",
            unset="none",
        ),
    ] = None
    consent: Annotated[bool, Flag("people are asked at sign-in whether their groups may be read")] = False
    client_id: Annotated[
        str, Text("with `consent`: of the registered application", name="clientID", empty="", unset="none")
    ] = ""
    client_secret_file: Annotated[
        Path | None,
        FilePath("with `consent`: the file with its secret", holds=Holds.SECRET, checked=False, empty="", unset="none"),
    ] = None
    api: Annotated[str, Word("which API is asked", APIS, mistake=BAD_API, hint="", empty="")] = APIS[0]
    subject: Annotated[
        str, Text("the administrator as whom the service account asks; the directory needs one", empty="", unset="none")
    ] = ""
    domains: Annotated[
        tuple[str, ...] | None,
        Texts("groups of these domains only", empty_list=EMPTY_LIST, unset="every relevant group that is an address"),
    ] = None
    user_prefix: Annotated[
        str, AnyText("what the usernames begin with that are Google's; without it they are addresses", unset="none")
    ] = ""
    endpoint: Annotated[str | None, Text("another address of the API", empty=BAD_ENDPOINT, unset="Google's")] = None
    ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of that address", holds=Holds.CERTIFICATES, checked=False, empty="", unset="the system's"
        ),
    ] = None

    def check(self, fields: ConfigSection) -> None:
        if self.consent:
            if not self.client_id and fields.is_right("clientID"):
                fields.problem("it is missing: Google gives it to a registered application", "clientID")
            if self.client_secret_file is None and fields.is_right("clientSecretFile"):
                fields.problem("it is missing: the file with the application's secret", "clientSecretFile")
            return
        for name in ("clientID", "clientSecretFile"):
            if name in fields:
                fields.problem("it is used with consent: true only", name)
        if self.key_file is None and fields.is_right("keyFile"):
            fields.problem("it is missing: the JSON key of a service account", "keyFile", "or set consent: true")
        if self.api == "directory" and not self.subject and fields.is_right("subject"):
            fields.problem("it is missing: the administrator as whom the directory is asked", "subject")


PREFERRED_USERNAME, EMAIL, SUB = "preferred_username", "email", "sub"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeycloakSettings(NamedIssuerSettings):
    """The settings of the identity provider ``keycloak``."""

    url: Annotated[str, Text("the URL of Keycloak, before `/realms`", empty="", missing="it is missing: its URL")]
    realm: Annotated[
        str,
        Text(
            "the name of the realm",
            pattern="[A-Za-z0-9._~-]+",
            mistake="it is not the name of a realm",
            hint="letters, digits, and . _ ~ -",
            empty="",
            missing="it is missing: the name of the realm",
        ),
    ]
    username: Annotated[
        str, username("the claim with the username; `sub` never changes", (PREFERRED_USERNAME, EMAIL, SUB))
    ] = PREFERRED_USERNAME
    groups: Annotated[
        str, Text("the claim of the mapper *Group Membership*; a realm has none from the start", empty=EMPTY_NAME)
    ] = "groups"
    leading_slash: Annotated[
        bool, Flag("whether a group is called `/team/blue` as in Keycloak; else it is `team/blue`")
    ] = True
    realm_roles: Annotated[bool, Flag("whether roles of the realm are groups too, as `realm-role:NAME`")] = False
    client_roles: Annotated[
        tuple[str, ...],
        Texts(
            "the clients whose roles are groups too, as `client-role:CLIENT:NAME`",
            pattern="[^:]+",
            mistake="the name of a client with a colon could be mistaken for that of a role",
            empty="it names no client",
        ),
    ] = ()
    offline_access: Annotated[
        bool, Flag("whether to ask for offline tokens, which outlive the person's session in Keycloak")
    ] = False


AUTHORITY = "https://login.microsoftonline.com"
MANY_TENANTS = ("organizations", "common")
GUID = r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
OID, MICROSOFT_PREFERRED_USERNAME = "oid", "preferred_username"
GROUPS, ROLES = "groups", "roles"


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrosoftSettings(NamedIssuerSettings):
    """The settings of the identity provider ``microsoft``."""

    tenant: Annotated[
        str,
        Text(
            "the ID of the tenant; `organizations` or `common` for accounts of several, with `allowedTenants`",
            pattern=f"{GUID}|{'|'.join(MANY_TENANTS)}",
            mistake="it is not the ID of a tenant, 00000000-0000-0000-0000-000000000000",
            hint="tokens name the tenant by its ID and never by a domain",
            empty="",
            missing="it is missing: the ID of the tenant",
        ),
    ]
    allowed_tenants: Annotated[
        tuple[str, ...],
        Texts(
            "with `organizations` and `common`: the IDs of the tenants whose accounts are let in",
            pattern=GUID,
            mistake="it is not the ID of a tenant, 00000000-0000-0000-0000-000000000000",
            empty="it is not the ID of a tenant",
            empty_list="an empty list lets nobody in",
            unset="the one of `tenant`",
        ),
    ] = ()
    username: Annotated[
        str,
        username(
            "the claim with the username. `oid` never changes. `preferred_username` is an address that can change,"
            " and be given to somebody else",
            (OID, MICROSOFT_PREFERRED_USERNAME),
        ),
    ] = OID
    groups: Annotated[
        str,
        Word(
            "what groups are made of: the IDs of security groups, or the roles of the application",
            (GROUPS, ROLES),
            mistake=f"it must be {GROUPS} or {ROLES}",
            hint="",
            empty="",
        ),
    ] = GROUPS
    authority: Annotated[str, Text("where a national cloud signs people in", empty="")] = AUTHORITY
    refresh_tokens: Annotated[bool, refresh_tokens("this is the scope `offline_access`")] = True

    @property
    def has_many_tenants(self) -> bool:
        return self.tenant in MANY_TENANTS

    def check(self, fields: ConfigSection) -> None:
        if not fields.is_right("tenant", "allowedTenants", "username"):
            return
        if self.has_many_tenants and not self.allowed_tenants:
            message = f"it is missing: with tenant: {self.tenant} everybody's tenant could sign in"
            fields.problem(message, "allowedTenants", "list the IDs of the tenants that you trust")
        if self.allowed_tenants and not self.has_many_tenants:
            fields.problem("it is used with tenant: organizations or common only", "allowedTenants")
        if self.has_many_tenants and self.username != OID:
            message = "an address does not tell the tenants apart: each chooses those of its users"
            fields.problem(message, "username", "leave it out")


PREFERRED_USERNAME, EMAIL, SUB = "preferred_username", "email", "sub"


@dataclass(frozen=True, slots=True, kw_only=True)
class OktaSettings(NamedIssuerSettings):
    """The settings of the identity provider ``okta``."""

    domain: Annotated[
        str, host("the domain of the organisation", missing="it is missing: the domain, acme.okta.com say")
    ]
    authorization_server: Annotated[
        str,
        Text(
            "the ID of a custom authorization server, or `default`",
            pattern="[A-Za-z0-9_-]+",
            mistake="it is not the ID of an authorization server",
            empty="",
            unset="the organisation's own",
        ),
    ] = ""
    username: Annotated[
        str, username("the claim with the username; `sub` never changes", (PREFERRED_USERNAME, EMAIL, SUB))
    ] = PREFERRED_USERNAME
    groups: Annotated[str, Text("the claim with the groups, which is set up in Okta", empty=EMPTY_NAME)] = "groups"
    scopes: Annotated[
        tuple[str, ...],
        scopes("what to ask for, besides `openid` and `profile`: the scope that the claim with the groups belongs to"),
    ] = ()
    refresh_tokens: Annotated[bool, refresh_tokens("the application needs the grant type *Refresh Token*")] = True
