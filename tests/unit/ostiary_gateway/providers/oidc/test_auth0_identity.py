"""Auth0: its name ends with a slash, groups have a namespace, and an organisation is compared."""

from __future__ import annotations

from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.providers.oidc.presets import Auth0Identity
from tests.support.issuer import ABSENT
from tests.support.relying_party import RelyingParty

GROUPS = "https://example.com/groups"


@pytest.fixture
def auth0(party: RelyingParty) -> RelyingParty:
    party.issuer.path = "/"
    party.issuer.person = {"sub": "auth0|5f", GROUPS: ["platform"]}
    return party


def make(party: RelyingParty, **settings: Any) -> Auth0Identity:
    return party.make(Auth0Identity, **{"domain": party.issuer.host, **settings})


async def test_a_person_signs_in_at_an_issuer_that_ends_with_a_slash(auth0: RelyingParty) -> None:
    """S1: IAM as a service."""
    assert auth0.issuer.name.endswith("/")
    assert await auth0.sign_in(make(auth0, groups=GROUPS)) == UserInfo("auth0|5f", "auth0|5f", ("platform",))


async def test_without_the_slash_it_is_another_issuer(auth0: RelyingParty) -> None:
    provider = make(auth0)
    auth0.issuer.claims["iss"] = auth0.issuer.url
    assert "another issuer" in str((await auth0.refusal(provider)).cause)
    auth0.issuer.metadata["issuer"] = auth0.issuer.url
    with pytest.raises(ProviderError, match="unavailable"):
        await auth0.sign_in(make(auth0))


async def test_a_refresh_token_needs_its_scope(auth0: RelyingParty) -> None:
    assert (await auth0.asked(make(auth0)))["scope"] == "openid offline_access"
    assert (await auth0.asked(make(auth0, refreshTokens=False)))["scope"] == "openid"
    assert (await auth0.asked(make(auth0, renewal="signIn")))["scope"] == "openid"


@pytest.mark.parametrize(("organization", "claim"), [("org_7", "org_id"), ("acme", "org_name")])
async def test_asking_for_an_organisation_is_not_enough_so_the_claim_is_compared(
    auth0: RelyingParty, organization: str, claim: str
) -> None:
    provider = make(auth0, organization=organization)
    assert (await auth0.asked(provider))["organization"] == organization
    for value in (ABSENT, "another", [organization]):
        auth0.issuer.claims[claim] = value
        assert "allowed organisation" in str(await auth0.refusal(provider))
    auth0.issuer.claims[claim] = organization
    assert await auth0.sign_in(provider)
    # A name is not taken for an ID, which somebody else's organisation could be called.
    auth0.issuer.claims |= {"org_id": ABSENT, "org_name": ABSENT}
    auth0.issuer.claims["org_name" if claim == "org_id" else "org_id"] = organization
    assert "allowed organisation" in str(await auth0.refusal(provider))


async def test_an_address_counts_if_it_is_verified(auth0: RelyingParty) -> None:
    auth0.issuer.person |= {"email": "alice@example.com", "email_verified": False}
    provider = make(auth0, username="email")
    assert (await auth0.asked(provider))["scope"] == "openid email offline_access"
    assert "not verified" in str(await auth0.refusal(provider))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "domain: it is missing"),
        ({"domain": "https://acme.auth0.com/"}, "domain: it is not the name of a host"),
        (
            {"domain": "acme.auth0.com", "groups": "roles"},
            'groups: Auth0 adds no claim "roles" to its tokens, and does not say so (give it a name with a namespace',
        ),
        ({"domain": "acme.auth0.com", "username": "nickname"}, "username: it must be sub or email"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_work_is_told(party: RelyingParty, settings: dict[str, Any], problem: str) -> None:
    _, problems = party.configure(Auth0Identity, settings)
    assert len(problems) == 1
    assert problems[0].startswith(problem)
