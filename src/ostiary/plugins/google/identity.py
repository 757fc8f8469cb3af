"""People sign in with Google: `oidc`, with what Google does in its own way.

    identity: [{name: staff, type: google, clientID: ..., clientSecretFile: ..., hostedDomains: [example.com]}]

The username is the e-mail address, if Google has verified it and is the one to say whose it is; the uid is ``sub``.
Asking Google for a domain (``hd``) only chooses what its page offers, so the claim is compared. Groups are not in the
tokens: the group provider ``google`` asks for them. Called by the gateway at sign-ins and renewals.
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
from ostiary.plugins.google.settings import GoogleIdentitySettings
from ostiary.plugins.oidc.claims import ClaimNames
from ostiary.plugins.oidc.named_issuer import NamedIssuerIdentity, wants_refresh_token

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
    def from_config(cls, fields: Fields, context: Context) -> Self:
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
