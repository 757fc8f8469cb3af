"""People sign in with Microsoft Entra ID: `oidc`, with what Microsoft does in its own way.

    identity: [{name: staff, type: microsoft, tenant: 11111111-..., clientID: ..., clientSecretFile: ...}]

The uid is ``oid``, which never changes, and so is the username unless the operator wants an address. Where accounts of
several tenants sign in, each token is verified as one of its own tenant, by that tenant's keys, and the username ends
with the tenant's ID. A token that leaves groups out because there are too many is an error and nobody without groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.clock import Clock
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import LoginRefused, ProviderError
from ostiary.interfaces.identity import Produces
from ostiary.model import UserInfo
from ostiary.plugins.common.jwt.issuer import Issuer, outbound_to_issuer
from ostiary.plugins.common.jwt.tokens import Claims, TokenRefused, TokenRules, parse_token
from ostiary.plugins.common.outbound import Outbound
from ostiary.plugins.microsoft.settings import GROUPS, OID, MicrosoftSettings
from ostiary.plugins.oidc.claims import ClaimNames, text_of
from ostiary.plugins.oidc.named_issuer import OFFLINE_ACCESS, NamedIssuerIdentity, check_url, wants_refresh_token
from ostiary.plugins.oidc.verified_claims import IdTokensOfIssuer

TENANT_ID = "{tenantid}"


def issuer_of(authority: str, tenant: str) -> str:
    """The name of a tenant's issuer, in version 2.0 of the endpoints."""
    return f"{authority}/{tenant}/v2.0"


@dataclass(frozen=True, slots=True)
class MicrosoftClaims:
    names: ClaimNames
    with_tenant: bool = False

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object]) -> UserInfo:
        tenant = text_of("tid", claims)
        if not text_of(OID, claims) or not tenant:
            raise LoginRefused("the issuer returned no usable user name", cause="there is no oid, or no tid")
        if self.names.groups == GROUPS and claims.get("hasgroups"):
            raise ProviderError(
                "the groups of this user are unknown",
                cause="Entra ID says that there are groups (hasgroups), and leaves them out",
                hint="let Entra ID send only the groups that are assigned to this application, or use groups: roles",
            )
        user = self.names.user(claims)
        # An `oid` is unique in its tenant; nothing says that no other tenant can have the same.
        return replace(user, username=f"{user.username}@{tenant}") if self.with_tenant else user

    def produces(self) -> Produces:
        return self.names.produces()


class IdTokensOfTenants:
    """Believes ID tokens of *tenants* and of no others, each by the name and the keys of its own issuer.

    The claim ``tid`` says which one to ask, before anything is verified; a token that names another tenant than the one
    that signed it fails as a forgery there.
    """

    def __init__(
        self, authority: str, tenants: Iterable[str], rules: TokenRules, outbound: Outbound, *, clock: Clock
    ) -> None:
        names = {tenant: issuer_of(authority, tenant) for tenant in tenants}
        self._by_tenant = {
            tenant: IdTokensOfIssuer(Issuer(name, outbound, clock=clock), replace(rules, issuer=name), clock=clock)
            for tenant, name in names.items()
        }

    async def verify(self, id_token: str, *, nonce: str | None, access_token: str | None) -> Claims:
        tenant = parse_token(id_token).claims.get("tid")
        believed = self._by_tenant.get(tenant) if isinstance(tenant, str) else None
        if believed is None:
            raise TokenRefused("its tenant (tid) is not one of allowedTenants")
        return await believed.verify(id_token, nonce=nonce, access_token=access_token)


class MicrosoftIdentity(NamedIssuerIdentity):
    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        settings = read_settings(MicrosoftSettings, fields, context.directory)
        authority, tenant = check_url(settings.authority, fields, "authority"), settings.tenant.lower()
        outbound = outbound_to_issuer(settings.ca, fields)
        id_tokens = None
        if settings.has_many_tenants:
            rules = TokenRules(
                issuer=None,
                audiences=frozenset((settings.client_id,)),
                client_id=settings.client_id,
                skew=settings.clock_skew,
            )
            tenants = [each.lower() for each in settings.allowed_tenants]
            id_tokens = IdTokensOfTenants(authority, tenants, rules, outbound, clock=context.clock)
        # Without `profile` there is neither an `oid` nor a `tid`.
        offline = wants_refresh_token(settings, wanted=settings.refresh_tokens)
        return cls.build(
            settings,
            fields,
            context,
            issuer=issuer_of(authority, tenant),
            claims=MicrosoftClaims(
                ClaimNames(username=settings.username, uid=OID, groups=settings.groups),
                with_tenant=settings.has_many_tenants,
            ),
            scopes=("profile", *((OFFLINE_ACCESS,) if offline else ())),
            announced_issuer=issuer_of(authority, TENANT_ID) if settings.has_many_tenants else "",
            id_tokens=id_tokens,
            outbound=outbound,
        )
