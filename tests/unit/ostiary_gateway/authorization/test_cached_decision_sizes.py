"""How many bytes attributes take: everything that a client can make long counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ostiary.model import Attributes, RequestInfo, Requirement, UserInfo
from ostiary_gateway.authorization.cached_decision import attributes_size

LONG = "x" * 1000
USER = UserInfo("alice")
REQUEST = RequestInfo("get", "GET", "/")


def test_every_part_of_a_request_counts(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {"verb": LONG},
        {"method": LONG},
        {"path": LONG},
        {"modifier": LONG},
        {"api_group": LONG},
        {"api_version": LONG},
        {"namespace": LONG},
        {"resource": LONG},
        {"subresource": LONG},
        {"name": LONG},
        {"capabilities": (LONG,)},
        {"upstream": LONG},
        {"field_selector": (Requirement(LONG, "In", ()),)},
        {"field_selector": (Requirement("a", "In", ("b", LONG)),)},
        {"label_selector": (Requirement("a", "In", ()), Requirement("b", LONG, ()))},
        {"label_selector": (Requirement("a", "In", (LONG,)),)},
    ]
    for change in cases:
        with subtests.test(next(iter(change))):
            plain = attributes_size(Attributes(USER, REQUEST))
            assert 0 < plain < 100
            assert 990 <= attributes_size(Attributes(USER, replace(REQUEST, **change))) - plain < 1050


@pytest.mark.parametrize(
    "user",
    [
        UserInfo(LONG),
        UserInfo("alice", LONG),
        UserInfo("alice", groups=("a", LONG)),
        UserInfo("alice", extra=((LONG, ("a",)),)),
        UserInfo("alice", extra=(("a", ("b", LONG)),)),
    ],
    ids=["name", "uid", "groups", "key of an extra", "value of an extra"],
)
def test_every_part_of_a_user_counts(user: UserInfo) -> None:
    plain = attributes_size(Attributes(USER, REQUEST))
    assert 990 <= attributes_size(Attributes(user, REQUEST)) - plain < 1050


def test_two_selectors_count_both() -> None:
    selector = (Requirement("a", "In", (LONG,)),)
    both = replace(REQUEST, field_selector=selector, label_selector=selector)
    assert attributes_size(Attributes(USER, both)) > 2000
