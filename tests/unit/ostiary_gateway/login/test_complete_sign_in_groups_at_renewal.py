"""Groups that can only be heard of at sign-in stay for the session, and no others come in by that."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import pytest

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.config.provider import Groups
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.login.groups import GroupChecks, ProviderUser, attest

ALICE = UserInfo("alice")
SIGN_IN, RENEWAL = LoginRequest("GET", "/auth"), LoginRequest("POST", "/auth/renew")


class Kept:
    """Knows groups while the person is there, and keeps what it said."""

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        if request == RENEWAL:
            raise LoginRefused("asked in the wrong way")
        return tuple(Membership(group, "a claim") for group in sorted(relevant & {"dev", "ops"}))

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused("nobody returns")

    async def groups_at_renewal(
        self, user: UserInfo, relevant: AbstractSet[str], before: Sequence[Membership]
    ) -> tuple[Membership, ...]:
        return tuple(before)


class Asked(Kept):
    """Is asked again at every renewal, and by then knows of nothing."""

    groups_at_renewal = None  # type: ignore[assignment]

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        return () if request == RENEWAL else tuple(Membership(group) for group in sorted(relevant))


async def test_what_was_said_at_sign_in_stays_at_a_renewal_and_what_can_be_asked_is_asked() -> None:
    """S36, T3."""
    relevant = {"acme:dev", "acme:ops", "ldap:dev", "new"}

    async def matter() -> AbstractSet[str]:
        return relevant

    checks = GroupChecks(
        (Groups("claims", "", Kept(), prefix="acme:"), Groups("ldap", "", Asked(), prefix="ldap:")), matter
    )
    signed = ProviderUser("acme", ALICE, ALICE)
    first = await checks.ask(signed, SIGN_IN)
    assert isinstance(first, tuple)
    user, sources = attest(ALICE, first)
    assert user.groups == ("acme:dev", "acme:ops", "ldap:dev")
    relevant.discard("acme:ops")
    renewed = await checks.ask(signed, RENEWAL, before=sources)
    assert renewed == (Membership("acme:dev", "claims: a claim"),)


async def test_without_a_session_it_is_asked_as_ever() -> None:
    async def matter() -> AbstractSet[str]:
        return {"dev"}

    checks = GroupChecks((Groups("claims", "", Kept()),), matter)
    with pytest.raises(LoginRefused):
        await checks.ask(ProviderUser("acme", ALICE, ALICE), RENEWAL)
