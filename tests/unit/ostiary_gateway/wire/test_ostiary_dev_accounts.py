"""Requests about accounts and tokens are read strictly: nothing that somebody asks for is left out in silence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ostiary_gateway.wire.ostiary_dev import AccountRequest, TokenRequest, decode_account_request, decode_token_request


def test_an_account_is_read() -> None:
    value = {"metadata": {"name": "a", "namespace": "b"}, "spec": {"description": "c", "disabled": False}}
    assert decode_account_request(value) == AccountRequest("a", "b", "c", False)
    assert decode_account_request({"kind": "ServiceAccount", "apiVersion": "ostiary.dev/v1"}) == AccountRequest()


def test_a_token_request_is_read_as_kubernetes_writes_it() -> None:
    value = {"kind": "TokenRequest", "spec": {"expirationSeconds": 600}, "status": {}}
    assert decode_token_request(value) == TokenRequest(timedelta(minutes=10))
    named = {"kind": "APIToken", "spec": {"name": "x", "scope": "get pods -A"}}
    assert decode_token_request(named) == TokenRequest(None, "get pods -A", "x")
    assert decode_token_request({}) == TokenRequest()


def test_what_is_not_understood_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        [],
        "text",
        {"spec": []},
        {"spec": {"audiences": ["vault"]}},
        {"spec": {"boundObjectRef": None}},
        {"other": 1},
        {"kind": "Secret"},
        {"spec": {"expirationSeconds": "600"}},
        {"spec": {"expirationSeconds": 1.5}},
        {"spec": {"expirationSeconds": 2**70}},
        {"spec": {"name": 7}},
        {"spec": {"name": "a" * 101}},
        {"spec": {"name": "a\u0000"}},
        {"spec": {"scope": "a\u2028b"}},
    ]
    for value in cases:
        with (
            subtests.test(value=value),
            pytest.raises(ValueError, match=r"is not|has an unknown|longer than|contains|must be"),
        ):
            decode_token_request(value)
