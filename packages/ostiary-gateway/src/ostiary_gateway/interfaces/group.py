"""Group providers: which of the groups that matter is this user in?"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ostiary.model import Place, UserInfo
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect


@dataclass(frozen=True, slots=True)
class Membership:
    """One group the user is in, and how the provider knows: ``via nested group "platform"``."""

    group: str
    source: str = ""


class GroupProvider(Protocol):
    """Says which groups a user is in, right after identity is known and before any token exists.

    `relevant` holds the groups that some policy mentions; only these can matter, and the gateway drops any other
    that is returned. So a provider that cannot list a user's groups asks about each relevant one. It has the same
    two flows as identity: return the memberships, or a `Redirect` after which `groups_from_provider` finishes at
    ``/auth/<name>/groups/provider``.

    One instance serves all requests at once. Any exception refuses the login: a token with silently missing groups
    is never issued.
    """

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...] | Redirect: ...

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]: ...


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group without any prefix, its members as tokens name them, and where that stands."""

    name: str
    members: frozenset[str]
    place: Place = field(default=Place(), compare=False)


@runtime_checkable
class ListsGroups(Protocol):
    """A group provider that knows beforehand which groups there are, and all their members.

    Lines of a policy or of the provider's own source that can match nobody are then reported. It may raise if its
    source cannot be read.
    """

    def listed_groups(self) -> tuple[ListedGroup, ...]: ...


@runtime_checkable
class ChecksUsers(Protocol):
    """A group provider whose source knows the users' accounts as well, and refuses who has none any more.

    Called before `groups_of`, at each sign-in and each renewal, whether or not any of its groups matter. Raise
    `LoginRefused` for a user who is unknown or disabled there: nobody is signed in, and a session ends. So users of an
    identity provider that cannot ask its own identity system again are checked at renewals all the same, and their
    sessions last as long as others.
    """

    async def check_user(self, user: UserInfo) -> None: ...


@runtime_checkable
class KeepsGroups(Protocol):
    """A group provider that hears of groups only while the person is there: from a claim, a header, a certificate.

    When a session is renewed, this is called in place of `groups_of`. `before` is what the provider said when the
    session began, as it said it; it returns what of that is still so. Groups that began to matter later are not known.
    """

    async def groups_at_renewal(
        self, user: UserInfo, relevant: AbstractSet[str], before: Sequence[Membership]
    ) -> tuple[Membership, ...]: ...
