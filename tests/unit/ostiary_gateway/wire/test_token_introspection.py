"""TokenIntrospection: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.model import UserInfo
from ostiary_gateway.wire.token_introspection import (
    TokenDescription,
    decode_answer,
    decode_question,
    encode_answer,
    question,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
USERS = st.builds(
    UserInfo,
    TEXTS.filter(bool),
    TEXTS,
    st.lists(TEXTS).map(tuple),
    st.dictionaries(TEXTS, st.lists(TEXTS).map(tuple)).map(lambda extra: tuple(sorted(extra.items()))),
)
DESCRIPTIONS = st.builds(
    TokenDescription,
    USERS,
    st.integers(0, 2**33).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    TEXTS.filter(bool),
    TEXTS.filter(bool),
    sequence=st.integers(0, 2**53),
    began_at=st.integers(0, 2**33),
    delegation=TEXTS,
)
ANN = TokenDescription(UserInfo("ann"), datetime(2030, 1, 1, tzinfo=UTC), "ab" * 32, "cd" * 32)


@given(DESCRIPTIONS)
def test_what_is_written_is_read(description: TokenDescription) -> None:
    """S14: names come back as they were."""
    assert decode_answer(json.loads(encode_answer(description))) == description


def test_nobody_is_no_description() -> None:
    assert decode_answer(json.loads(encode_answer(None))) is None


@given(TEXTS)
def test_a_question_is_read(token: str) -> None:
    assert decode_question(json.dumps(question(token)).encode()) == (token, "")
    for address, understood in [("192.0.2.1", "192.0.2.1"), ("2001:DB8::1", "2001:db8::1"), ("x", ""), ("", "")]:
        assert decode_question(json.dumps(question(token, address)).encode()) == (token, understood)


def test_any_other_question_is_refused_without_quoting_it(subtests: pytest.Subtests) -> None:
    cases = [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"kind":"TokenReview"}',
        b"[" * 5000,
        json.dumps({**question("t"), "spec": {}}).encode(),
    ]
    for data in cases:
        with subtests.test(data=data):
            with pytest.raises(ValueError) as caught:
                decode_question(data)
            assert "TokenReview" not in str(caught.value)


def test_a_question_that_is_too_large_is_not_read() -> None:
    with pytest.raises(ValueError, match="too large"):
        decode_question(json.dumps(question("x" * 20_000)).encode())


def test_half_an_answer_is_no_yes(subtests: pytest.Subtests) -> None:
    """T5."""
    cases: list[dict[str, Any]] = [
        {"authenticated": "yes"},
        {"authenticated": None},
        {"user": None},
        {"user": {"username": "", "uid": "", "groups": [], "extra": {}}},
        {"user": {"username": "ann", "uid": "", "groups": ["dev", 7], "extra": {}}},
        {"user": {"username": "ann", "uid": "", "groups": [], "extra": {"a": "b"}}},
        {"expiresAt": None},
        {"expiresAt": True},
        {"expiresAt": 1e300},
        {"credentialID": ""},
        {"session": None},
        {"sequence": "1"},
        {"beganAt": True},
        # Without it nobody could say that the token is not a narrowed one.
        {"delegation": None},
    ]
    for change in cases:
        with subtests.test(change=change):
            answer = json.loads(encode_answer(ANN))
            answer["status"] |= change
            with pytest.raises(ValueError):
                decode_answer(answer)


@pytest.mark.parametrize("answer", [{}, {"kind": "TokenReview", "status": {"authenticated": True}}])
def test_an_answer_of_another_kind_is_none(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="TokenIntrospection"):
        decode_answer(answer)
