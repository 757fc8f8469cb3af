"""Okta: the organisation's server and custom ones differ, ID tokens lack claims, and lists of groups end unnoticed."""

from __future__ import annotations

from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.providers.oidc.presets import MOST_GROUPS, OktaIdentity
from tests.support.relying_party import RelyingParty


@pytest.fixture
def okta(party: RelyingParty) -> RelyingParty:
    """As Okta answers a code: the ID token has the subject, UserInfo all the rest."""
    party.issuer.person = {"sub": "00u1"}
    party.issuer.user_info |= {"preferred_username": "alice@example.com", "groups": ["Everyone", "platform"]}
    return party


def make(party: RelyingParty, **settings: Any) -> OktaIdentity:
    return party.make(OktaIdentity, **{"domain": party.issuer.host, **settings})


async def test_a_person_signs_in_at_the_organisations_server(okta: RelyingParty) -> None:
    """S1: IAM as a service."""
    provider = make(okta)
    assert (await okta.asked(provider))["scope"] == "openid profile groups offline_access"
    assert await okta.sign_in(provider) == UserInfo("alice@example.com", "00u1", ("Everyone", "platform"))


async def test_a_custom_server_is_another_issuer_and_has_scopes_of_its_own(okta: RelyingParty) -> None:
    okta.issuer.path = "/oauth2/default"
    provider = make(okta, authorizationServer="default")
    assert (await okta.asked(provider))["scope"] == "openid profile offline_access"
    assert (await okta.sign_in(provider)).username == "alice@example.com"
    provider = make(okta, authorizationServer="default", scopes=["team"], groups="teams", refreshTokens=False)
    assert (await okta.asked(provider))["scope"] == "openid profile team"
    okta.issuer.user_info["teams"] = ["blue"]
    assert (await okta.sign_in(provider)).groups == ("blue",)


async def test_the_server_of_the_organisation_does_not_speak_for_a_custom_one(okta: RelyingParty) -> None:
    okta.issuer.path = "/oauth2/default"
    okta.issuer.claims["iss"] = okta.issuer.url
    provider = make(okta, authorizationServer="default")
    assert "another issuer" in str((await okta.refusal(provider)).cause)


@pytest.mark.parametrize(("number", "is_clear"), [(MOST_GROUPS - 1, True), (MOST_GROUPS, False), (101, True)])
async def test_a_list_that_may_be_cut_off_is_an_error(okta: RelyingParty, number: int, is_clear: bool) -> None:
    okta.issuer.user_info["groups"] = [f"group-{index}" for index in range(number)]
    provider = make(okta)
    if is_clear:
        assert len((await okta.sign_in(provider)).groups) == number
    else:
        with pytest.raises(ProviderError, match="groups of this user are unknown"):
            await okta.sign_in(provider)


async def test_an_address_counts_if_it_is_verified(okta: RelyingParty) -> None:
    okta.issuer.user_info |= {"email": "alice@example.com", "email_verified": False}
    provider = make(okta, username="email")
    assert "email" in (await okta.asked(provider))["scope"].split()
    assert "not verified" in str(await okta.refusal(provider))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "domain: it is missing: the domain, acme.okta.com say"),
        ({"domain": "https://acme.okta.com"}, "domain: it is not the name of a host (without https://"),
        ({"domain": "acme.okta.com/oauth2"}, "domain: it is not the name of a host"),
        ({"domain": "acme.okta.com", "authorizationServer": "a/b"}, "authorizationServer: "),
        ({"domain": "acme.okta.com", "groups": ""}, "groups: "),
        ({"domain": "acme.okta.com", "scopes": ["a b"]}, "scopes: "),
    ],
    ids=str,
)
def test_a_wrong_setting_is_told(party: RelyingParty, settings: dict[str, Any], problem: str) -> None:
    _, problems = party.configure(OktaIdentity, settings)
    assert len(problems) == 1
    assert problems[0].startswith(problem)
