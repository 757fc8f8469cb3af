"""The groups that a token attests: the relevant ones only, from every group provider that serves this user.

An error of any provider ends the sign-in or session refresh: a token must not silently lack groups.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from ostiary.core.account_names import OWN_NAMES
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Groups
from ostiary_gateway.config.refresh_check import serves
from ostiary_gateway.interfaces.group import ChecksUsers, KeepsGroups, Membership
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect

RelevantGroups = Callable[[], Awaitable[AbstractSet[str]]]
# Names reserved for Kubernetes. No provider may attest them: system:masters passes every authorization rule.
SYSTEM = "system:"


@dataclass(frozen=True, slots=True)
class ProviderUser:
    """A user whom an identity provider identified, with the provider's name (`own`) and the name in tokens (`user`)."""

    identity: str
    own: UserInfo
    user: UserInfo


@dataclass(frozen=True, slots=True)
class Away:
    """The group provider at `position` redirects the browser. `memberships` are those of the providers before it."""

    redirect: Redirect
    position: int
    memberships: tuple[Membership, ...]


class ContractBroken(ProviderError):
    """A provider result that breaks the contract. It is reported to the operator."""


class GroupChecks:
    """Query the group providers for the relevant groups of a user."""

    def __init__(self, groups: Sequence[Groups], relevant_groups: RelevantGroups) -> None:
        self._groups = tuple(groups)
        self._relevant_groups = relevant_groups

    async def ask(
        self,
        provider_user: ProviderUser,
        request: LoginRequest,
        *,
        position: int = 0,
        memberships: tuple[Membership, ...] = (),
        returning: bool = False,
        before: Sequence[tuple[str, str]] | None = None,
    ) -> tuple[Membership, ...] | Away:
        """Return the memberships from the provider at *position* on. *returning*: that provider completes its redirect.

        At a session refresh *before* are the groups of the session with their sources. It is None at a sign-in, and if
        the identity provider has just returned the complete user.
        """
        relevant = _checked_relevant(await self._relevant_groups())
        for index in range(position, len(self._groups)):
            provider = self._groups[index]
            if not serves(provider, provider_user.identity):
                continue
            user = provider_user.own if provider.own else provider_user.user
            checking = ability(provider.instance, ChecksUsers)
            if checking is not None and not (returning and index == position):
                await checking.check_user(user)
            wanted_groups = _relevant_to(provider, relevant)
            if not wanted_groups:
                continue
            if returning and index == position:
                answer: object = await provider.instance.groups_from_provider(user, wanted_groups, request)
            elif before is not None and (keeping := ability(provider.instance, KeepsGroups)) is not None:
                answer = await keeping.groups_at_renewal(user, wanted_groups, _memberships_before(provider, before))
            else:
                answer = await provider.instance.groups_of(user, wanted_groups, request)
                if isinstance(answer, Redirect):
                    return Away(answer, index, memberships)
            memberships += _checked_memberships(provider, wanted_groups, answer)
        return memberships


def attest(user: UserInfo, memberships: Sequence[Membership]) -> tuple[UserInfo, tuple[tuple[str, str], ...]]:
    """Return the user with its groups, without duplicates, and the source of each."""
    sources: dict[str, str] = {}
    for membership in memberships:
        sources.setdefault(membership.group, membership.source)
    return replace(user, groups=tuple(sources)), tuple(sources.items())


def _checked_relevant(relevant: object) -> frozenset[str]:
    if not isinstance(relevant, AbstractSet) or not all(isinstance(group, str) for group in relevant):
        raise ContractBroken("the relevant groups are unknown", cause="relevant_groups did not return a set")
    return frozenset(group for group in relevant if not group.startswith((SYSTEM, OWN_NAMES)))


def _relevant_to(provider: Groups, relevant: AbstractSet[str]) -> frozenset[str]:
    """Return the relevant groups under this provider's own names, without its prefix."""
    prefix = provider.prefix
    return frozenset(group[len(prefix) :] for group in relevant if group.startswith(prefix) and group != prefix)


def _checked_memberships(provider: Groups, wanted_groups: AbstractSet[str], answer: object) -> tuple[Membership, ...]:
    if not isinstance(answer, (tuple, list)) or not all(isinstance(item, Membership) for item in answer):
        cause = f"it answered with {type(answer).__name__} instead of memberships"
        raise ContractBroken(f'the group provider "{provider.name}" breaks its contract', cause=cause)
    # Drop groups that were not requested: no policy check has covered what they would allow.
    return tuple(
        Membership(provider.prefix + item.group, _source(provider, item))
        for item in answer
        if item.group in wanted_groups
    )


def _memberships_before(provider: Groups, before: Sequence[tuple[str, str]]) -> tuple[Membership, ...]:
    """Return the session's groups from this provider under its own names: the reverse of `_checked_memberships`."""
    rows = ((group, *source.partition(": ")) for group, source in before)
    return tuple(
        Membership(group[len(provider.prefix) :], source)
        for group, name, _, source in rows
        if name == provider.name and group.startswith(provider.prefix)
    )


def _source(provider: Groups, membership: Membership) -> str:
    return f"{provider.name}: {membership.source}" if membership.source else provider.name
