"""The settings of the identity provider ``keycloak``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary.core.settings.kinds import Flag, Text, Texts
from ostiary.plugins.oidc.settings import EMPTY_NAME, NamedIssuerSettings, username

PREFERRED_USERNAME, EMAIL, SUB = "preferred_username", "email", "sub"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeycloakSettings(NamedIssuerSettings):
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
