"""The list of revoked credentials, as JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ostiary_gateway.wire.revoked_credentials import (
    RevokedCredentials,
    RevokedSubject,
    decode_revoked_credentials,
    encode_revoked_credentials,
)

LIST = RevokedCredentials(
    "https://gateway.example",
    ("prod", "dev"),
    head=12,
    credential_ids=("aa",),
    sessions=("bb",),
    subjects=(
        RevokedSubject(username="ann", sequence=3),
        RevokedSubject(),
        RevokedSubject(group="g", began_until=0),
        RevokedSubject(username="eve", issued_until=0),
    ),
    issued_until=99,
)


def fields(**changes: Any) -> dict[str, Any]:
    return {**json.loads(encode_revoked_credentials(LIST)), **changes}


def test_what_is_written_is_read_as_the_same() -> None:
    assert decode_revoked_credentials(fields()) == LIST
    short = RevokedCredentials("https://gateway.example", ("prod",))
    assert decode_revoked_credentials(json.loads(encode_revoked_credentials(short))) == short


def test_half_a_list_is_no_list(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {"kind": "Status"},
        {"apiVersion": "ostiary.dev/v2"},
        {"credentialIDs": None},
        {"credentialIDs": [1]},
        {"sessions": "bb"},
        {"subjects": ["ann"]},
        {"subjects": None},
        {"subjects": [{"username": 1}]},
        {"subjects": [{"upstream": "a condition of a later version"}]},
        {"head": "12"},
        {"issuedUntil": True},
    ]
    for changes in cases:
        with subtests.test(changes=changes), pytest.raises(ValueError, match=r"it |is not"):
            decode_revoked_credentials(fields(**changes))


def test_a_missing_part_is_no_empty_part() -> None:
    for name in ("credentialIDs", "sessions", "subjects", "audiences"):
        parts = fields()
        del parts[name]
        with pytest.raises(ValueError, match=r"is not|it "):
            decode_revoked_credentials(parts)
