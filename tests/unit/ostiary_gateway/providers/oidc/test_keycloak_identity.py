"""Keycloak: a realm is an issuer, groups are paths, and roles are no groups."""

from __future__ import annotations

from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import SignOut
from ostiary_gateway.providers.oidc.presets import KeycloakIdentity
from tests.support.issuer import ABSENT
from tests.support.relying_party import RelyingParty


@pytest.fixture
def keycloak(party: RelyingParty) -> RelyingParty:
    party.issuer.path = "/realms/acme"
    party.issuer.person = {
        "sub": "f3a1",
        "preferred_username": "alice",
        "groups": ["/team", "/team/blue"],
        "realm_access": {"roles": ["default-roles-acme", "admin"]},
        "resource_access": {"gateway": {"roles": ["viewer"]}, "other": {"roles": ["owner"]}},
    }
    return party


def make(party: RelyingParty, **settings: Any) -> KeycloakIdentity:
    return party.make(KeycloakIdentity, **{"url": f"{party.issuer.url}/", "realm": "acme", **settings})


async def test_a_person_of_the_realm_signs_in_with_groups_as_paths(keycloak: RelyingParty) -> None:
    """S1: IAM as a service. No role is a group unless that is wanted."""
    assert await keycloak.sign_in(make(keycloak)) == UserInfo("alice", "f3a1", ("/team", "/team/blue"))


async def test_another_realm_is_another_issuer(keycloak: RelyingParty) -> None:
    provider = make(keycloak)
    keycloak.issuer.claims["iss"] = f"{keycloak.issuer.url}/realms/master"
    assert "another issuer" in str((await keycloak.refusal(provider)).cause)


async def test_below_a_path(keycloak: RelyingParty) -> None:
    """Before version 17 it was /auth."""
    keycloak.issuer.path = "/auth/realms/acme"
    assert (await keycloak.sign_in(make(keycloak, url=f"{keycloak.issuer.url}/auth"))).username == "alice"


async def test_paths_may_lose_their_slash_and_nothing_else(keycloak: RelyingParty) -> None:
    keycloak.issuer.person["groups"] = ["/team/blue", "plain", "//odd"]
    assert (await keycloak.sign_in(make(keycloak, leadingSlash=False))).groups == ("team/blue", "plain", "/odd")


async def test_somebody_in_no_group_has_none(keycloak: RelyingParty) -> None:
    """Keycloak leaves out a claim without values, so nothing can be told from its absence."""
    keycloak.issuer.person["groups"] = ABSENT
    keycloak.issuer.claims["groups"] = ABSENT
    assert (await keycloak.sign_in(make(keycloak))).groups == ()


async def test_roles_are_groups_with_names_that_no_group_has(keycloak: RelyingParty) -> None:
    groups = (await keycloak.sign_in(make(keycloak, realmRoles=True, clientRoles=["gateway", "absent"]))).groups
    assert groups == (
        "/team",
        "/team/blue",
        "realm-role:default-roles-acme",
        "realm-role:admin",
        "client-role:gateway:viewer",
    )


@pytest.mark.parametrize(
    ("group", "settings"),
    [("realm-role:admin", {}), ("/client-role:gateway:viewer", {"leadingSlash": False})],
    ids=str,
)
async def test_a_group_that_is_called_like_a_role_is_an_error(
    keycloak: RelyingParty, group: str, settings: dict[str, Any]
) -> None:
    keycloak.issuer.person["groups"] = [group]
    with pytest.raises(ProviderError, match="groups of this user are unknown"):
        await keycloak.sign_in(make(keycloak, **settings))


async def test_with_its_slash_a_group_is_no_role(keycloak: RelyingParty) -> None:
    keycloak.issuer.person["groups"] = ["/realm-role:admin"]
    assert (await keycloak.sign_in(make(keycloak))).groups == ("/realm-role:admin",)


async def test_roles_that_are_wanted_and_not_in_the_token_are_an_error(keycloak: RelyingParty) -> None:
    """By default they are in access tokens alone. Everybody has at least one role of the realm."""
    keycloak.issuer.claims["realm_access"] = ABSENT
    assert await keycloak.sign_in(make(keycloak))
    with pytest.raises(ProviderError, match="groups of this user are unknown") as outage:
        await keycloak.sign_in(make(keycloak, realmRoles=True))
    assert "ID token" in str(outage.value.hint)


@pytest.mark.parametrize("claim", ["realm_access", "resource_access"])
async def test_roles_that_cannot_be_read_are_an_error(keycloak: RelyingParty, claim: str) -> None:
    keycloak.issuer.claims[claim] = "admin" if claim == "realm_access" else {"gateway": ["viewer"]}
    with pytest.raises(ProviderError, match="cannot be used"):
        await keycloak.sign_in(make(keycloak, realmRoles=True, clientRoles=["gateway"]))


async def test_offline_tokens_are_the_operators_choice(keycloak: RelyingParty) -> None:
    """An ordinary refresh token comes with every sign-in, and ends with the person's session in Keycloak."""
    assert (await keycloak.asked(make(keycloak)))["scope"] == "openid profile"
    assert (await keycloak.asked(make(keycloak, offlineAccess=True)))["scope"] == "openid profile offline_access"
    identified = await keycloak.keep(make(keycloak))
    assert identified.kept is not None


async def test_signing_out_here_may_end_the_session_there(keycloak: RelyingParty) -> None:
    keycloak.issuer.metadata["end_session_endpoint"] = f"{keycloak.issuer.name}/protocol/openid-connect/logout"
    here = "https://gateway.example.com/auth"
    assert await make(keycloak).sign_out(SignOut(None, here)) is None
    away = await make(keycloak, endSession=True).sign_out(SignOut(None, here))
    assert away is not None
    assert away.url.startswith(f"{keycloak.issuer.name}/protocol/openid-connect/logout?")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"realm": "acme"}, "url: it is missing"),
        ({"url": "https://sso.example.com"}, "realm: it is missing"),
        ({"url": "http://sso.example.com", "realm": "acme"}, "url: it is not a https URL"),
        ({"url": "https://sso.example.com", "realm": "../master"}, "realm: it is not the name of a realm"),
        ({"url": "https://sso.example.com", "realm": "a", "clientRoles": ["a:b"]}, "clientRoles: the name of a client"),
        ({"url": "https://sso.example.com", "realm": "a", "groups": ""}, "groups: "),
    ],
    ids=str,
)
def test_a_wrong_setting_is_told(party: RelyingParty, settings: dict[str, Any], problem: str) -> None:
    _, problems = party.configure(KeycloakIdentity, settings)
    assert len(problems) == 1
    assert problems[0].startswith(problem)
