"""From claims to a user: texts as they are, addresses only if verified, nothing guessed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.providers.oidc.claims import ClaimNames

EMAIL = ClaimNames(username="email")
ALL = ClaimNames("name", "id", "groups", (("example.com/b", "team"), ("example.com/a", "name")))


def test_the_username_is_the_subject_unless_it_says_otherwise() -> None:
    """L7. Only a subject is never given to somebody else."""
    assert ClaimNames().user({"sub": "7f3a", "name": "alice"}) == UserInfo("7f3a")


def test_every_part_comes_from_its_claim() -> None:
    claims = {"name": "alice", "id": "7", "groups": ["a", "b", "a"], "team": ["x", "y"]}
    assert ALL.user(claims) == UserInfo(
        "alice", "7", ("a", "b"), (("example.com/a", ("alice",)), ("example.com/b", ("x", "y")))
    )


def test_what_is_missing_is_nothing_but_the_name() -> None:
    assert ALL.user({"name": "alice"}) == UserInfo("alice", extra=(("example.com/a", ("alice",)),))
    with pytest.raises(LoginRefused):
        ALL.user({"id": "7"})


def test_a_name_that_cannot_be_used_is_refused(subtests: pytest.Subtests) -> None:
    for name in ["", " alice", "alice\n", "ali\x00ce", "a" * 257, "a\u200bb"]:
        with subtests.test(name=name), pytest.raises(LoginRefused):
            ClaimNames().user({"sub": name})


def test_an_address_must_be_verified(subtests: pytest.Subtests) -> None:
    """L7."""
    for verified in [None, False, "true", "false", 1, [True]]:
        with subtests.test(verified=verified):
            with pytest.raises(LoginRefused, match="not verified"):
                EMAIL.user({"email": "alice@example.com", "email_verified": verified})
            with pytest.raises(LoginRefused):
                ClaimNames(extra=(("example.com/mail", "email"),)).user({"sub": "a", "email": "a@b.c"})


def test_an_address_has_one_at(subtests: pytest.Subtests) -> None:
    """L7."""
    cases = [
        "alice@example.com@evil.example",
        "alice@evil.example@example.com",
        '"a@b"@example.com',
        "alice",
        "@example.com",
        "alice@",
        "alice @example.com",
        "alice@example.com\n",
        "",
    ]
    for address in cases:
        with subtests.test(address=address), pytest.raises(LoginRefused):
            EMAIL.user({"email": address, "email_verified": True})


def test_a_verified_address_is_taken_as_it_is() -> None:
    """S14."""
    assert EMAIL.user({"email": "Alice+k8s@Example.com", "email_verified": True}).username == "Alice+k8s@Example.com"


@pytest.mark.parametrize("groups", [7, True, {"a": 1}, ["a", 7], [["a"]]])
def test_groups_of_another_shape_close_the_door(groups: Any) -> None:
    with pytest.raises(ProviderError):
        ALL.user({"name": "alice", "groups": groups})


def test_one_group_may_be_a_text() -> None:
    assert ALL.user({"name": "alice", "groups": "developers"}).groups == ("developers",)


def test_groups_that_are_elsewhere_are_not_taken_for_none() -> None:
    """Entra ID leaves out the claim when there are too many, and names a place to ask."""
    with pytest.raises(ProviderError, match="are unknown"):
        ALL.user({"name": "alice", "_claim_names": {"groups": "src1"}})


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
JSON = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=5), SCALARS, max_size=3)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(["name", "id", "groups", "team", "email", "_claim_names"]), JSON))
def test_whatever_the_claims_are_it_is_a_whole_user_or_an_error_of_ours(claims: dict[str, object]) -> None:
    try:
        user = ALL.user(claims)
    except OstiaryError:
        return
    assert user.username == claims["name"] or [user.username] == claims["name"]
    assert all(isinstance(text, str) for text in (user.uid, *user.groups))


def test_a_subject_that_is_no_text_is_a_refusal_and_no_outage(subtests: pytest.Subtests) -> None:
    for subject in [7, 7.5, True, ["a", "b"], {"a": 1}, [7]]:
        with subtests.test(subject=subject), pytest.raises(LoginRefused):
            ClaimNames().user({"sub": subject})
