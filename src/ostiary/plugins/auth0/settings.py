"""The settings of the identity provider ``auth0``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary.core.config import Fields
from ostiary.core.settings.kinds import Text
from ostiary.plugins.oidc.settings import EMPTY_NAME, NamedIssuerSettings, host, refresh_tokens, username

SUB, EMAIL = "sub", "email"
# Auth0 does not add a custom claim of such a name, and tells nobody.
RESTRICTED = frozenset(("groups", "roles", "permissions", "entitlements", "org_id", "org_name"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth0Settings(NamedIssuerSettings):
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

    def check(self, fields: Fields) -> None:
        if self.groups in RESTRICTED:
            message = f'Auth0 adds no claim "{self.groups}" to its tokens, and does not say so'
            hint = f"give it a name with a namespace in the Action: https://example.com/{self.groups}"
            fields.problem(message, "groups", hint)
