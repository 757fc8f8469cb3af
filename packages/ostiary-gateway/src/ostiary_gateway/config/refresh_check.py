"""How a user is checked when a session of an identity provider is refreshed. No side effects."""

from __future__ import annotations

from collections.abc import Iterable

from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Groups, Identity
from ostiary_gateway.interfaces.group import ChecksUsers
from ostiary_gateway.interfaces.identity import RenewalCheck, Revalidates, TellsRenewalCheck


def renewal_check(identity: Identity, groups: Iterable[Groups] = ()) -> RenewalCheck:
    """Return the identity provider's check, or ASKED if a group provider also checks its users."""
    check = _own_check(identity.instance)
    if check is RenewalCheck.SIGN_IN or not any(_checks_users_of(each, identity.name) for each in groups):
        return check
    return RenewalCheck.ASKED


def serves(provider: Groups, identity: str) -> bool:
    """Report whether a group provider serves the users of an identity provider."""
    return not provider.identities or identity in provider.identities


def _checks_users_of(provider: Groups, identity: str) -> bool:
    return serves(provider, identity) and ability(provider.instance, ChecksUsers) is not None


def _own_check(instance: object) -> RenewalCheck:
    """Return the check that the provider declares, or the one that its capabilities imply."""
    telling = ability(instance, TellsRenewalCheck)
    if telling is not None and isinstance(telling.renewal_check, RenewalCheck):
        return telling.renewal_check
    return RenewalCheck.NOBODY if ability(instance, Revalidates) is None else RenewalCheck.ASKED
