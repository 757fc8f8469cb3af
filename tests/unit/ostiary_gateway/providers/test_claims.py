"""Groups that were said at sign-in: those that matter, at once and until the session ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.claims import SOURCE, ClaimsGroups

SIGN_IN = LoginRequest("GET", "/auth/provider")
RENEWAL = LoginRequest("POST", "/auth/renew")


@settings(max_examples=50)
@given(st.sets(st.text(), max_size=5), st.lists(st.text(), max_size=5))
async def test_exactly_what_is_said_and_matters_is_told(relevant: set[str], said: list[str]) -> None:
    """S14, S36."""
    found = await ClaimsGroups().groups_of(UserInfo("alice", groups=tuple(said)), relevant, SIGN_IN)
    assert {membership.group for membership in found} == relevant & set(said)
    assert len(found) == len(relevant & set(said))


async def test_nothing_is_told_at_a_renewal_by_guessing() -> None:
    """S37. Groups that are silently missing would make a wrong token."""
    with pytest.raises(LoginRefused, match="sign in again"):
        await ClaimsGroups().groups_of(UserInfo("alice"), {"developers"}, RENEWAL)


async def test_at_a_renewal_those_stay_that_were_said_and_still_matter() -> None:
    """T3, S36."""
    before = tuple(Membership(group, SOURCE) for group in ("developers", "operators"))
    found = await ClaimsGroups().groups_at_renewal(UserInfo("alice"), {"developers", "new"}, before)
    assert found == (Membership("developers", SOURCE),)


async def test_nobody_returns_from_elsewhere() -> None:
    with pytest.raises(LoginRefused):
        await ClaimsGroups().groups_from_provider(UserInfo("alice", groups=("a",)), {"a"}, SIGN_IN)


def test_it_has_no_settings() -> None:
    reading = ConfigReader(parse("{}"))
    assert isinstance(ClaimsGroups.from_config(reading.root, Context()), ClaimsGroups)
    assert reading.problems == []
