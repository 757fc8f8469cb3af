"""Groups that the identity provider learns at sign-in: from a claim of a token, a header or a certificate.

    groups: [{name: teams, provider: acme}]                     for users of the identity provider "acme"
    groups: [{name: teams, type: claims, identities: [acme]}]   likewise, but groups are named as in the token

The relevant groups are selected from `UserInfo.groups`, which only identity providers set. They cannot be looked up
again without the user, so a refresh keeps those of the sign-in that are still relevant.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Self

from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest

SOURCE = "said at sign-in"
RENEWAL = "/auth/renew"


class ClaimedGroups:
    """Base class of identity providers that set `UserInfo.groups`, to be used as their group provider too."""

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        if request.path == RENEWAL:
            # A refresh presents no claims, and a token without groups would be wrong.
            raise LoginRefused(
                "this session has expired or was revoked: sign in again",
                cause="groups cannot be looked up without an interactive sign-in",
            )
        return tuple(Membership(group, SOURCE) for group in sorted(relevant & set(user.groups)))

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused("there is no sign-in to continue: start again", cause="claims send nobody elsewhere")

    async def groups_at_renewal(
        self, user: UserInfo, relevant: AbstractSet[str], before: Sequence[Membership]
    ) -> tuple[Membership, ...]:
        return tuple(membership for membership in before if membership.group in relevant)


class ClaimsGroups(ClaimedGroups):
    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        return cls()
