"""People sign in with Keycloak: `oidc`, with what Keycloak does in its own way.

    identity: [{name: staff, type: keycloak, url: https://sso.example.com, realm: acme, clientID: gateway, ...}]

The issuer is URL/realms/REALM. Groups come from a mapper, as paths: ``/team/blue``. Roles are not groups, so those that
are wanted get names that no group has. A refresh token comes with every sign-in and ends with the session in Keycloak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import ProviderError
from ostiary.interfaces.identity import Produces
from ostiary.model import UserInfo
from ostiary.plugins.keycloak.settings import EMAIL, KeycloakSettings
from ostiary.plugins.oidc.claims import ClaimNames, texts_of
from ostiary.plugins.oidc.named_issuer import OFFLINE_ACCESS, NamedIssuerIdentity, check_url, wants_refresh_token

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
    def from_config(cls, fields: Fields, context: Context) -> Self:
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
