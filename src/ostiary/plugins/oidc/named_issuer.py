"""The base of the identity providers for issuers that are known by name: ``google``, ``keycloak`` and the like.

    identity: [{name: staff, type: keycloak, url: https://sso.example.com, realm: acme, clientID: gateway, ...}]

Each of them is `oidc` with the issuer, scopes and claims that its few settings imply, and with a reader of claims that
knows the issuer's habits. Called by their `from_config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.config import Fields
from ostiary.plugins.common.jwt.issuer import outbound_to_issuer, usable_url
from ostiary.plugins.common.outbound import Outbound
from ostiary.plugins.common.renewal import Renewal
from ostiary.plugins.oidc.claims import ReadsClaims
from ostiary.plugins.oidc.identity import OidcIdentity
from ostiary.plugins.oidc.settings import NamedIssuerSettings
from ostiary.plugins.oidc.verified_claims import IdTokens

OFFLINE_ACCESS = "offline_access"


class NamedIssuerIdentity(OidcIdentity):
    @classmethod
    def build(
        cls,
        settings: NamedIssuerSettings,
        fields: Fields,
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


def check_url(url: str, fields: Fields, key: str) -> str:
    """*url* without a slash at its end; what is wrong with the setting *key* is noted."""
    if url and ((parts := usable_url(url, plain=True)) is None or parts.query):
        fields.problem("it is not a https URL without a query", key, "plain http is for this machine only")
    return url.rstrip("/")


def wants_refresh_token(settings: NamedIssuerSettings, *, wanted: bool) -> bool:
    """Whether to ask for one: not where nothing is renewed."""
    return wanted and settings.renewal is not Renewal.SIGN_IN
