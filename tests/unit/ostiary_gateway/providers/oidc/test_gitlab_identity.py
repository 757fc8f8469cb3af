"""GitLab: groups come from two places, and one that is silent is not somebody without groups."""

from __future__ import annotations

from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.providers.oidc.presets import GitLabIdentity
from tests.support.issuer import ABSENT
from tests.support.relying_party import RelyingParty


@pytest.fixture
def gitlab(party: RelyingParty) -> RelyingParty:
    """As GitLab answers: the ID token has the direct groups, UserInfo the name and all groups."""
    issuer = party.issuer
    issuer.person = {"sub": "42", "email": "alice@example.com", "email_verified": True}
    issuer.claims |= {"groups_direct": ["acme/platform"]}
    issuer.user_info |= {"preferred_username": "alice", "nickname": "alice", "groups": ["acme", "acme/platform"]}
    return party


def make(party: RelyingParty, **settings: Any) -> GitLabIdentity:
    return party.make(GitLabIdentity, **{"url": f"{party.issuer.url}/", **settings})


def test_without_a_url_it_is_gitlab_com(party: RelyingParty) -> None:
    assert party.make(GitLabIdentity)._issuer.url == "https://gitlab.com"


async def test_a_person_signs_in_with_all_groups(gitlab: RelyingParty) -> None:
    """S1: IAM as a service. A group above counts where GitLab counts it; paths are whole."""
    assert await gitlab.sign_in(make(gitlab)) == UserInfo("alice", "42", ("acme", "acme/platform"))


async def test_below_a_path(gitlab: RelyingParty) -> None:
    gitlab.issuer.path = "/gitlab"
    assert (await gitlab.sign_in(make(gitlab, url=gitlab.issuer.name))).username == "alice"


async def test_direct_groups_come_from_the_id_token(gitlab: RelyingParty) -> None:
    gitlab.issuer.user_info["groups_direct"] = ["evil"]
    assert (await gitlab.sign_in(make(gitlab, groups="direct"))).groups == ("acme/platform",)


async def test_only_members_of_allowed_groups_are_let_in(gitlab: RelyingParty) -> None:
    assert await gitlab.sign_in(make(gitlab, allowedGroups=["acme"]))
    provider = make(gitlab, allowedGroups=["acm", "acme/other", "ACME"])
    assert "allowed group" in str(await gitlab.refusal(provider))
    # In "acme" somebody is because of nothing but the group below.
    assert "allowed group" in str(await gitlab.refusal(make(gitlab, allowedGroups=["acme"], groups="direct")))


async def test_somebody_who_has_left_the_group_is_refused_at_a_renewal(gitlab: RelyingParty) -> None:
    provider = make(gitlab, allowedGroups=["acme"])
    identified = await gitlab.keep(provider)
    gitlab.issuer.user_info["groups"] = []
    assert identified.kept is not None
    with pytest.raises(Exception, match="allowed group"):
        await provider.ask_again(identified.user, identified.kept)


@pytest.mark.parametrize("groups", ["all", "direct"])
async def test_an_empty_list_is_nobody_in_a_group_and_a_missing_one_an_error(gitlab: RelyingParty, groups: str) -> None:
    provider = make(gitlab, groups=groups)
    gitlab.issuer.user_info["groups"] = gitlab.issuer.claims["groups_direct"] = []
    assert (await gitlab.sign_in(provider)).groups == ()
    gitlab.issuer.user_info["groups"] = gitlab.issuer.claims["groups_direct"] = ABSENT
    with pytest.raises(ProviderError, match="groups of this user are unknown"):
        await gitlab.sign_in(provider)


async def test_direct_groups_without_an_id_token_at_a_renewal_are_an_error(gitlab: RelyingParty) -> None:
    provider = make(gitlab, groups="direct")
    identified = await gitlab.keep(provider)
    gitlab.issuer.tokens["id_token"] = ABSENT
    assert identified.kept is not None
    with pytest.raises(ProviderError, match="groups of this user are unknown"):
        await provider.ask_again(identified.user, identified.kept)


async def test_the_address_is_the_primary_one_and_verified(gitlab: RelyingParty) -> None:
    provider = make(gitlab, username="email")
    assert (await gitlab.asked(provider))["scope"] == "openid email"
    assert (await gitlab.sign_in(provider)).username == "alice@example.com"
    gitlab.issuer.person["email_verified"] = False
    assert "not verified" in str(await gitlab.refusal(provider))
    assert (await gitlab.asked(make(gitlab)))["scope"] == "openid"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"url": "http://gitlab.example.com"}, "url: it is not a https URL"),
        ({"url": "https://gitlab.example.com?a=b"}, "url: it is not a https URL"),
        ({"allowedGroups": []}, "allowedGroups: an empty list restricts nothing"),
        ({"groups": "nested"}, "groups: it must be all or direct"),
        ({"username": "name"}, "username: it must be preferred_username, email or sub"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_told(party: RelyingParty, settings: dict[str, Any], problem: str) -> None:
    _, problems = party.configure(GitLabIdentity, settings)
    assert len(problems) == 1
    assert problems[0].startswith(problem)
