"""The settings of the identity provider ``microsoft``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary.core.config import Fields
from ostiary.core.settings.kinds import Text, Texts, Word
from ostiary.plugins.oidc.settings import NamedIssuerSettings, refresh_tokens, username

AUTHORITY = "https://login.microsoftonline.com"
MANY_TENANTS = ("organizations", "common")
GUID = r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
OID, PREFERRED_USERNAME = "oid", "preferred_username"
GROUPS, ROLES = "groups", "roles"


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrosoftSettings(NamedIssuerSettings):
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
            (OID, PREFERRED_USERNAME),
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

    def check(self, fields: Fields) -> None:
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
