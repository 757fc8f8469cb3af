"""Groups that nobody attests: who has them, and which of them an API server adds by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.model import UserInfo
from ostiary_gateway.authorization.implied_groups import (
    complete_impersonated,
    groups_to_impersonate,
    implied_groups,
    is_service_account_group,
    with_implied_groups,
)

KNOWN, UNKNOWN = "system:authenticated", "system:unauthenticated"
OF_SHOP = ("system:serviceaccounts", "system:serviceaccounts:shop")
ACCOUNT = "system:serviceaccount:shop:builder"


def test_whoever_is_known_is_authenticated(subtests: pytest.Subtests) -> None:
    """2.2."""
    cases: list[tuple[UserInfo, tuple[str, ...]]] = [
        (UserInfo("alice"), (KNOWN,)),
        (UserInfo("alice", groups=("dev",)), (KNOWN,)),
        (UserInfo("alice", groups=(KNOWN,)), ()),
        (UserInfo("alice", groups=(UNKNOWN,)), ()),
        (UserInfo(ACCOUNT, groups=OF_SHOP), (KNOWN,)),
        (UserInfo("system:anonymous"), ()),
        (UserInfo(""), ()),
        (UserInfo("", groups=("dev",)), ()),
    ]
    for user, groups in cases:
        with subtests.test(user=user, groups=groups):
            assert implied_groups(user) == groups
            assert with_implied_groups(user).groups == (*user.groups, *groups)


def test_whom_somebody_impersonates_has_the_groups_that_an_api_server_adds(subtests: pytest.Subtests) -> None:
    cases: list[tuple[UserInfo, tuple[str, ...]]] = [
        (UserInfo("alice"), (KNOWN,)),
        (UserInfo("alice", groups=("dev",)), ("dev", KNOWN)),
        (UserInfo("alice", groups=(UNKNOWN,)), (UNKNOWN,)),
        (UserInfo("system:anonymous"), (UNKNOWN,)),
        (UserInfo("system:anonymous", groups=(UNKNOWN,)), (UNKNOWN,)),
        (UserInfo("system:anonymous", groups=("dev",)), ("dev", UNKNOWN)),
        (UserInfo(ACCOUNT), (*OF_SHOP, KNOWN)),
        (UserInfo(ACCOUNT, groups=("dev",)), ("dev", KNOWN)),
        (UserInfo("system:serviceaccount:shop"), (KNOWN,)),
        (UserInfo("system:serviceaccount:shop:a:b"), (KNOWN,)),
        (UserInfo("system:serviceaccount:Shop:builder"), (KNOWN,)),
        (UserInfo("system:serviceaccount::builder"), (KNOWN,)),
    ]
    for user, groups in cases:
        with subtests.test(user=user, groups=groups):
            assert complete_impersonated(user).groups == groups


def test_an_api_server_is_not_told_of_groups_that_it_adds_itself(subtests: pytest.Subtests) -> None:
    cases: list[tuple[UserInfo, tuple[str, ...]]] = [
        (UserInfo("noxu", groups=(KNOWN,)), ()),
        (UserInfo("noxu", groups=("dev", KNOWN, "ops")), ("dev", "ops")),
        (UserInfo(ACCOUNT, groups=(*OF_SHOP, KNOWN)), ()),
        (UserInfo(ACCOUNT, groups=(KNOWN,)), (KNOWN,)),
        (UserInfo("noxu", groups=(KNOWN, UNKNOWN)), (KNOWN, UNKNOWN)),
        (UserInfo("system:anonymous", groups=(UNKNOWN,)), ()),
    ]
    for user, told in cases:
        with subtests.test(user=user, told=told):
            assert groups_to_impersonate(user) == told


NAMES = st.sampled_from(["alice", "system:anonymous", ACCOUNT, "system:node:a", "system:serviceaccount:x"])
GROUPS = st.lists(st.sampled_from(["dev", KNOWN, UNKNOWN, *OF_SHOP, "system:nodes"]), max_size=4, unique=True)


@given(NAMES, GROUPS)
def test_an_impersonated_user_is_in_the_same_groups_there_as_here(name: str, groups: list[str]) -> None:
    user = complete_impersonated(UserInfo(name, groups=tuple(groups)))
    there = complete_impersonated(UserInfo(name, groups=groups_to_impersonate(user)))
    assert set(there.groups) == set(user.groups)
    assert with_implied_groups(user) == user


def test_the_groups_of_service_accounts_are_known(subtests: pytest.Subtests) -> None:
    cases = [
        ("system:serviceaccounts", True),
        ("system:serviceaccounts:shop", True),
        ("system:serviceaccounts:", False),
        ("system:serviceaccounts:a:b", False),
        ("system:serviceaccounts:Shop", False),
        ("system:masters", False),
        ("shop", False),
    ]
    for name, expected in cases:
        with subtests.test(name=name, expected=expected):
            assert is_service_account_group(name) is expected
