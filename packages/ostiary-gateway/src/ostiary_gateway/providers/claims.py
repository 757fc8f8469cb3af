"""Groups that the identity provider itself heard of at sign-in: a claim of a token, a header, a certificate.

    groups: [{name: teams, provider: acme}]                     the identity provider "acme" answers for its own users
    groups: [{name: teams, type: claims, identities: [acme]}]   the same, but named as in the token

The groups that matter are picked from `UserInfo.groups`, which only identity providers fill. They cannot be asked for
again without the person, so at a renewal those stay which the session was given at sign-in and which still matter.
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
    """The group provider's side of an identity provider that fills `UserInfo.groups`; inherit from it."""

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        if request.path == RENEWAL:
            # No claims are presented at a renewal; a token without groups would be wrong.
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
