"""Google: whose accounts are let in, and when there is a refresh token."""

from __future__ import annotations

from typing import Any

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.capabilities import has_trait
from ostiary_gateway.interfaces.identity import StepsUp
from ostiary_gateway.providers.oidc.presets import GoogleIdentity
from tests.support.issuer import ABSENT
from tests.support.relying_party import RelyingParty

ALICE = {"sub": "1104", "email": "alice@example.com", "email_verified": True, "hd": "example.com"}


@pytest.fixture
def google(party: RelyingParty) -> type[GoogleIdentity]:
    """Google, on this machine."""
    party.issuer.person = dict(ALICE)

    class Google(GoogleIdentity):
        ISSUER = party.issuer.url

    return Google


def test_the_issuer_is_googles(party: RelyingParty) -> None:
    provider = party.make(GoogleIdentity, hostedDomains=["example.com"])
    assert provider._issuer.url == "https://accounts.google.com"


async def test_an_account_of_the_domain_signs_in_by_its_address(
    google: type[GoogleIdentity], party: RelyingParty
) -> None:
    """S1: IAM as a service."""
    provider = party.make(google, hostedDomains=["Example.com"])
    assert await party.sign_in(provider) == UserInfo("alice@example.com", uid="1104")


@pytest.mark.parametrize("domain", [ABSENT, "evil.example", "", 7, ["example.com"]], ids=str)
async def test_asking_for_a_domain_is_not_enough_so_the_claim_is_compared(
    google: type[GoogleIdentity], party: RelyingParty, domain: Any
) -> None:
    """Whoever changes `hd` in the address signs in with any account; the address of one says nothing either."""
    provider = party.make(google, hostedDomains=["example.com"])
    assert (await party.asked(provider))["hd"] == "example.com"
    party.issuer.claims["hd"] = domain
    refused = await party.refusal(provider)
    assert "allowed organisation" in str(refused)
    assert "hd" in str(refused.cause)


async def test_several_domains_are_asked_for_as_any_workspace(
    google: type[GoogleIdentity], party: RelyingParty
) -> None:
    provider = party.make(google, hostedDomains=["example.org", "example.com"])
    assert (await party.asked(provider))["hd"] == "*"
    assert await party.sign_in(provider)


async def test_an_address_that_is_not_verified_is_nobodys(google: type[GoogleIdentity], party: RelyingParty) -> None:
    provider = party.make(google, hostedDomains=["example.com"])
    party.issuer.claims["email_verified"] = False
    assert "not verified" in str(await party.refusal(provider))


@pytest.mark.parametrize(
    ("claims", "let_in"),
    [
        ({"email": "somebody@gmail.com", "hd": ABSENT}, True),
        ({"email": "alice@example.com", "hd": "example.com"}, True),
        ({"email": "alice@example.com", "hd": ABSENT}, False),
        ({"email": "alice@gmail.com.evil.example", "hd": ABSENT}, False),
    ],
    ids=str,
)
async def test_with_any_account_google_must_be_the_one_to_say_whose_address_it_is(
    google: type[GoogleIdentity], party: RelyingParty, claims: dict[str, Any], let_in: bool
) -> None:
    provider = party.make(google, anyAccount=True)
    assert "hd" not in await party.asked(provider)
    party.issuer.claims |= claims
    if let_in:
        assert (await party.sign_in(provider)).username == claims["email"]
    else:
        assert "does not answer for it" in str((await party.refusal(provider)).cause)


async def test_a_refresh_token_needs_offline_access_and_consent(
    google: type[GoogleIdentity], party: RelyingParty
) -> None:
    asked = await party.asked(party.make(google, hostedDomains=["example.com"]))
    assert (asked["access_type"], asked["prompt"]) == ("offline", "consent")
    assert "offline_access" not in asked["scope"], "Google does not know the scope"
    asked = await party.asked(party.make(google, hostedDomains=["example.com"], prompt="select_account"))
    assert asked["prompt"] == "select_account consent"
    for without in ({"refreshTokens": False}, {"renewal": "signIn"}):
        asked = await party.asked(party.make(google, hostedDomains=["example.com"], **without))
        assert not asked.keys() & {"access_type", "prompt"}


def test_it_cannot_step_up(party: RelyingParty) -> None:
    """Nothing that Google sends says that somebody has just signed in again."""
    assert not has_trait(party.make(GoogleIdentity, anyAccount=True), StepsUp)


async def test_somebody_who_has_left_the_domain_is_refused_at_a_renewal(
    google: type[GoogleIdentity], party: RelyingParty
) -> None:
    provider = party.make(google, hostedDomains=["example.com"])
    identified = await party.keep(provider)
    party.issuer.claims["hd"] = ABSENT
    assert identified.kept is not None
    with pytest.raises(Exception, match="allowed organisation"):
        await provider.ask_again(identified.user, identified.kept)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "hostedDomains: it is missing: the Workspace domains whose accounts are let in (anyAccount: true"),
        ({"hostedDomains": []}, "hostedDomains: an empty list lets nobody in"),
        ({"hostedDomains": ["@example.com"]}, "hostedDomains: it is not a domain"),
        ({"hostedDomains": ["example.com"], "anyAccount": True}, "anyAccount: it contradicts hostedDomains"),
        ({"anyAccount": True, "prompt": "login"}, "prompt: Google does not know it (it knows consent"),
        ({"anyAccount": True, "clientID": None}, "clientID: it is missing"),
        ({"anyAccount": True, "clientSecretFile": "no-such-file"}, "clientSecretFile: "),
    ],
    ids=str,
)
def test_a_setting_that_lets_in_too_many_or_nobody_is_told(
    party: RelyingParty, settings: dict[str, Any], problem: str
) -> None:
    _, problems = party.configure(GoogleIdentity, settings)
    assert len(problems) == 1
    assert problems[0].startswith(problem)
