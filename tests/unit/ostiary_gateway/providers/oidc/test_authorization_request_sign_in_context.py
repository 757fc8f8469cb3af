"""How a person signed in stands in the user's extra fields, and a renewal makes nothing newer than the issuer says."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ostiary.errors import LoginRefused
from ostiary_gateway.interfaces.identity import Identified, LoginRequest
from ostiary_gateway.providers.oidc.authorization_request import sign_in_context
from ostiary_gateway.providers.oidc.claims import ClaimNames
from ostiary_gateway.sessions.authentication_context import (
    ACR,
    AMR,
    AUTH_TIME,
    AuthenticationContext,
    with_latest_context,
)
from ostiary_gateway.testing import FakeClock
from tests.support.issuer import ABSENT, Issuer
from tests.unit.ostiary_gateway.providers.oidc.conftest import Make

VISIT = LoginRequest("GET", "/auth", callback_url="https://gateway.example.com/auth/provider")
ISSUED = 1_700_000_000


def test_only_what_can_be_read_is_taken(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], AuthenticationContext]] = [
        ({}, AuthenticationContext()),
        ({"acr": "gold", "amr": ["pwd", "otp"]}, AuthenticationContext("gold", ("pwd", "otp"))),
        ({"amr": "pwd"}, AuthenticationContext(amr=("pwd",))),
        ({"auth_time": ISSUED - 60}, AuthenticationContext(auth_time=datetime.fromtimestamp(ISSUED - 60, UTC))),
        ({"auth_time": ISSUED + 5}, AuthenticationContext(auth_time=datetime.fromtimestamp(ISSUED, UTC))),
        ({"auth_time": ISSUED + 3600}, AuthenticationContext()),
        ({"auth_time": "yesterday"}, AuthenticationContext()),
        ({"auth_time": True}, AuthenticationContext()),
        ({"auth_time": 0}, AuthenticationContext()),
        ({"auth_time": (ISSUED - 60) * 1000}, AuthenticationContext()),
        ({"acr": 3, "amr": ["pwd", 7]}, AuthenticationContext()),
        ({"acr": "a\nb", "amr": ["x" * 257]}, AuthenticationContext()),
        ({"acr": " gold", "amr": [""]}, AuthenticationContext()),
        ({"amr": [f"m{number}" for number in range(33)]}, AuthenticationContext()),
    ]
    for claims, expected in cases:
        with subtests.test(claims=claims, expected=expected):
            assert sign_in_context({"iat": ISSUED, **claims}) == expected


async def renew(provider: Any, identified: Identified) -> Identified:
    again = await provider.ask_again(identified.user, identified.kept)
    assert isinstance(again, Identified)
    return again


async def sign_in(provider: Any, issuer: Issuer) -> Identified:
    issuer.gives_refresh_tokens = True
    identified = await provider.handle_provider(issuer.visit(await provider.handle_client(VISIT)))
    assert isinstance(identified, Identified)
    return identified


async def test_it_stands_in_extra_and_stays_through_renewals(make: Make, issuer: Issuer, clock: FakeClock) -> None:
    begun = int(clock.now().timestamp())
    issuer.claims |= {"acr": "gold", "amr": ["pwd", "otp"], "auth_time": begun}
    provider = make()
    identified = await sign_in(provider, issuer)
    expected = {ACR: ("gold",), AMR: ("pwd", "otp"), AUTH_TIME: (f"{clock.now():%Y-%m-%dT%H:%M:%SZ}",)}
    assert dict(identified.user.extra) == expected
    assert set(provider.produces().extra) == set(expected)

    clock.advance(minutes=10)
    issuer.claims |= {"acr": ABSENT, "amr": ABSENT, "auth_time": ABSENT}
    identified = await renew(provider, identified)
    assert dict(identified.user.extra) == expected, "a refresh that says nothing changes nothing"

    issuer.tokens["id_token"] = ABSENT
    identified = await renew(provider, identified)
    assert dict(identified.user.extra) == expected, "nor one without an ID token"


async def test_what_the_issuer_says_at_a_renewal_takes_the_place_of_the_old(
    make: Make, issuer: Issuer, clock: FakeClock
) -> None:
    issuer.claims |= {"acr": "gold", "amr": ["pwd", "otp"], "auth_time": int(clock.now().timestamp())}
    provider = make()
    identified = await sign_in(provider, issuer)
    clock.advance(minutes=10)
    later = int(clock.now().timestamp())
    issuer.claims |= {"acr": "bronze", "amr": ["pwd"], "auth_time": later}
    extra = dict((await renew(provider, identified)).user.extra)
    assert extra == {ACR: ("bronze",), AMR: ("pwd",), AUTH_TIME: (f"{clock.now():%Y-%m-%dT%H:%M:%SZ}",)}


@pytest.mark.parametrize("first", [{"auth_time": "the sign-in"}, {}], ids=["with a time", "without a time"])
async def test_a_later_sign_in_at_the_issuer_has_nothing_of_the_one_before(
    make: Make, issuer: Issuer, clock: FakeClock, first: dict[str, object]
) -> None:
    """Else a second factor of yesterday, and a password of now, would be a second factor of now."""
    issuer.claims |= {"acr": "gold", "amr": ["pwd", "otp"]}
    issuer.claims |= {name: int(clock.now().timestamp()) for name in first}
    provider = make()
    identified = await sign_in(provider, issuer)
    clock.advance(hours=3)
    issuer.claims |= {"acr": ABSENT, "amr": ABSENT, "auth_time": int(clock.now().timestamp())}
    renewed = (await renew(provider, identified)).user
    assert dict(renewed.extra) == {AUTH_TIME: (f"{clock.now():%Y-%m-%dT%H:%M:%SZ}",)}
    # The gateway takes the later of the two, whole.
    assert with_latest_context(renewed, identified.user) == renewed


async def test_it_comes_from_the_id_token_and_never_from_user_info(make: Make, issuer: Issuer) -> None:
    """UserInfo says who somebody is; what is signed says how they proved it."""
    issuer.user_info |= {"acr": "gold", "amr": ["hwk"], "auth_time": 1}
    provider = make(user_info=True)
    assert (await sign_in(provider, issuer)).user.extra == ()
    issuer.claims["acr"] = "silver"
    assert dict((await sign_in(provider, issuer)).user.extra) == {ACR: ("silver",)}


async def test_claims_of_the_operator_stand_beside_it(make: Make, issuer: Issuer) -> None:
    issuer.claims |= {"acr": "gold", "team": "blue"}
    provider = make(claims=ClaimNames(extra=(("example.com/team", "team"),)))
    assert dict((await sign_in(provider, issuer)).user.extra) == {"example.com/team": ("blue",), ACR: ("gold",)}
    assert provider.produces().extra == ("example.com/team", ACR, AMR, AUTH_TIME)


async def test_a_session_whose_person_has_changed_ends(make: Make, issuer: Issuer) -> None:
    provider = make()
    identified = await sign_in(provider, issuer)
    issuer.claims["sub"] = "somebody else"
    with pytest.raises(LoginRefused):
        await renew(provider, identified)
