"""The settings of the identity provider ``okta``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary.core.settings.kinds import Text
from ostiary.plugins.oidc.settings import EMPTY_NAME, NamedIssuerSettings, host, refresh_tokens, scopes, username

PREFERRED_USERNAME, EMAIL, SUB = "preferred_username", "email", "sub"


@dataclass(frozen=True, slots=True, kw_only=True)
class OktaSettings(NamedIssuerSettings):
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
