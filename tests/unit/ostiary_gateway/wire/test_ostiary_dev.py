"""Requests to our own API group: what they ask for, and which of them are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest

from ostiary.model import RequestInfo
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.wire.ostiary_dev import decode_body, decode_revocation, decode_subject_search


def test_a_search_names_a_resource_or_a_path() -> None:
    asked = {"verb": "get", "group": "apps", "resource": "deployments", "namespace": "dev", "name": "web"}
    expected = RequestInfo(
        "get", "", "", is_resource=True, api_group="apps", resource="deployments", namespace="dev", name="web"
    )
    assert decode_subject_search(asked) == expected
    assert decode_subject_search({"verb": "get", "path": "/healthz"}) == RequestInfo("get", "", "/healthz")


def test_a_search_that_is_incomplete_or_ambiguous_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        ([], "not a JSON object"),
        ({"verb": "get"}, "either a resource or a path"),
        ({"verb": "get", "resource": "pods", "path": "/healthz"}, "either a resource or a path"),
        ({"resource": "pods"}, "needs a verb"),
        ({"verb": 1, "resource": "pods"}, "verb is not a string"),
        ({"verb": "get", "resource": "po\nds"}, "resource contains a character"),
        ({"verb": "get", "resource": "\ud800"}, "resource contains a character"),
    ]
    for value, message in cases:
        with subtests.test(value=value, message=message), pytest.raises(ValueError, match=message):
            decode_subject_search(value)


def test_a_revoked_token_is_known_by_its_digest_alone() -> None:
    hexadecimal = sha256(b"a token").hexdigest()
    value = {"type": "token", "value": hexadecimal.upper()}
    assert decode_revocation(value) == (RevocationKind.TOKEN, hexadecimal, None)
    assert decode_revocation({"type": "user", "value": "bob"}) == (RevocationKind.USER, "bob", None)


def test_everything_before_a_moment_can_be_revoked() -> None:
    assert decode_revocation({"type": "before", "before": "now"}) == (RevocationKind.BEFORE, "", None)
    moment = datetime(2030, 1, 1, 11, tzinfo=UTC)
    value = {"type": "before", "before": "2030-01-01T12:00:00+01:00"}
    assert decode_revocation(value) == (RevocationKind.BEFORE, "", moment)


def test_a_revocation_that_is_incomplete_or_ambiguous_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        ({"type": "everything", "value": "x"}, "type must be one of"),
        ({"type": "origin", "value": "0" * 64}, "type must be one of token, session, user, group, before"),
        ({"type": "user"}, "a value is missing"),
        ({"type": "token", "value": "secret"}, "neither a token nor"),
        ({"type": "before", "value": "x", "before": "now"}, "before has no value"),
        ({"type": "before"}, "before needs a time"),
        ({"type": "before", "before": "yesterday"}, "not RFC 3339"),
        ({"type": "before", "before": "2030-01-01T12:00:00"}, "no zone"),
        ({"type": "before", "before": "0001-01-01T00:00:00+14:00"}, "out of range"),
    ]
    for value, message in cases:
        with subtests.test(value=value, message=message), pytest.raises(ValueError, match=message):
            decode_revocation(value)


@pytest.mark.parametrize("body", [b"", b"{", b'{"verb": NaN}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not valid JSON"):
        decode_body(body)
