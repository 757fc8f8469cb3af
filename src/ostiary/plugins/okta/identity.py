"""People sign in with Okta: `oidc`, with what Okta does in its own way.

    identity: [{name: staff, type: okta, domain: acme.okta.com, clientID: ..., clientSecretFile: ...}]

The organisation's own authorization server is the issuer https://DOMAIN, and knows the scope ``groups``; a custom one
is https://DOMAIN/oauth2/ID, and has the scopes and claims that somebody has made there. With a code Okta gives an ID
token that lacks most claims, so they come from UserInfo. Its filters end at 100 groups without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import ProviderError
from ostiary.interfaces.identity import Produces
from ostiary.model import UserInfo
from ostiary.plugins.oidc.claims import ClaimNames
from ostiary.plugins.oidc.named_issuer import OFFLINE_ACCESS, NamedIssuerIdentity, wants_refresh_token
from ostiary.plugins.okta.settings import EMAIL, OktaSettings

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
    def from_config(cls, fields: Fields, context: Context) -> Self:
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
