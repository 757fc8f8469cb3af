"""People sign in with Auth0: `oidc`, with what Auth0 does in its own way.

    identity: [{name: staff, type: auth0, domain: acme.eu.auth0.com, clientID: ..., clientSecretFile: ...}]

Its issuer ends with a slash. Groups and roles are in no token unless an Action adds them, under a name with a
namespace. Whoever asks for an organisation must compare the claim, since the page alone proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import LoginRefused
from ostiary.interfaces.identity import Produces
from ostiary.model import UserInfo
from ostiary.plugins.auth0.settings import EMAIL, Auth0Settings
from ostiary.plugins.oidc.claims import ClaimNames
from ostiary.plugins.oidc.named_issuer import OFFLINE_ACCESS, NamedIssuerIdentity, wants_refresh_token

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
    def from_config(cls, fields: Fields, context: Context) -> Self:
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
