"""What a view is given."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.authorization.cached_decision import NOTHING_ASKED
from ostiary_gateway.middleware.access import Admitted, BackendPlan, question_about
from ostiary_gateway.middleware.bearer import CachedBearer
from ostiary_gateway.middleware.request import BackendRequest
from ostiary_gateway.wire.selectors import SelectorError
from ostiary_gateway.wire.token_introspection import TokenDescription

TOKEN = CachedBearer(b"d" * 32, TokenDescription(UserInfo("ann"), datetime(2999, 1, 1, tzinfo=UTC), "id", "session"))
OBJECTS = [{"metadata": {"name": name, "labels": {"tier": tier}}} for name, tier in (("a", "web"), ("b", "db"))]


def admitted(target: bytes) -> Admitted:
    info = RequestInfo("list", "GET", "/v1/carts", True, resource="carts")
    return Admitted(
        BackendRequest("GET", target, b"secret-token"),
        "id",
        0.0,
        TOKEN,
        BackendPlan((info,), NOTHING_ASKED, None),
        "shop",
    )


def test_the_selectors_of_the_request_select() -> None:
    """P4: of a parameter that stands there twice, the first counts."""
    chosen = admitted(b"/v1/carts?labelSelector=tier%3Dweb&labelSelector=tier%3Ddb").select(OBJECTS)
    assert [each["metadata"]["name"] for each in chosen] == ["a"]
    assert len(admitted(b"/v1/carts").select(OBJECTS)) == 2
    with pytest.raises(SelectorError):
        admitted(b"/v1/carts?labelSelector=%2C%2C").select(OBJECTS)


def test_no_secret_is_shown() -> None:
    assert "secret" not in repr(admitted(b"/")) + repr(admitted(b"/").request)


def test_a_question_says_what_it_is_about() -> None:
    info = question_about("shop", "restart", resource="carts", namespace="team", name="c1")
    assert (info.is_resource, info.upstream, info.verb, info.name) == (True, "shop", "restart", "c1")
    assert question_about("", "get", path="/x").is_resource is False
    for neither in ({}, {"resource": "carts", "path": "/x"}):
        with pytest.raises(ValueError, match="either"):
            question_about("", "get", **neither)
