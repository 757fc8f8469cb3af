"""Group providers: find the groups of a user that policies mention."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ostiary.model import Place, UserInfo
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect


@dataclass(frozen=True, slots=True)
class Membership:
    """A group of the user, and its source: ``via nested group "platform"``."""

    group: str
    source: str = ""


class GroupProvider(Protocol):
    """Determine the groups of a user, after the identity is known and before a token is issued.

    `relevant` holds the groups that some policy mentions; the gateway drops all others. A provider that cannot list a
    user's groups can check each relevant one. It has the same two flows as identity: return the memberships, or a
    `Redirect` after which `groups_from_provider` completes the login at ``/auth/<name>/groups/provider``.

    One instance serves all requests concurrently. Any exception fails the login: a token with missing groups is never
    issued.
    """

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...] | Redirect: ...

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]: ...


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group without prefix, its members as tokens name them, and its position in the source."""

    name: str
    members: frozenset[str]
    place: Place = field(default=Place(), compare=False)


@runtime_checkable
class ListsGroups(Protocol):
    """A group provider that can list all groups and all their members.

    Lines of a policy or of the provider's own source that match no user are then reported. May raise if the source
    cannot be read.
    """

    def listed_groups(self) -> tuple[ListedGroup, ...]: ...


@runtime_checkable
class ChecksUsers(Protocol):
    """A group provider whose source also has the users' accounts, and rejects users without one.

    Called before `groups_of`, at each sign-in and each refresh, whether or not any of its groups matter. Raise
    `LoginRefused` for a user who is unknown or disabled: no token is issued, and a session ends. Users of an identity
    provider that cannot query its IdP again are thus still checked at each refresh, and their sessions last as long as
    others.
    """

    async def check_user(self, user: UserInfo) -> None: ...


@runtime_checkable
class KeepsGroups(Protocol):
    """A group provider that learns groups only at sign-in: from a claim, a header, a certificate.

    When a session is refreshed, this is called instead of `groups_of`. *before* is what the provider returned when the
    session began; return those that still apply. Groups that became relevant later are unknown.
    """

    async def groups_at_renewal(
        self, user: UserInfo, relevant: AbstractSet[str], before: Sequence[Membership]
    ) -> tuple[Membership, ...]: ...
