"""What an operator reads about a failed provider, without a secret."""

from __future__ import annotations

import base64
from urllib.parse import quote_plus

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.observability.reasons import LONGEST_REASON, reason_of

PASSWORD = "p\u00e4ss w\u00f6rd+/="


def test_an_error_of_ours_is_its_summary_and_cause() -> None:
    assert (
        reason_of(ConfigurationError("it cannot start", cause="the file is gone"))
        == "it cannot start: the file is gone"
    )
    assert reason_of(ConfigurationError("it cannot start")) == "it cannot start"


def test_a_foreign_error_is_its_kind_and_text() -> None:
    assert reason_of(ValueError("no such name")) == "ValueError: no such name"
    assert reason_of(ValueError()) == "ValueError"


def test_an_error_that_cannot_say_anything_is_its_kind() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert reason_of(Mute()) == "Mute"


@pytest.mark.parametrize(
    "spelling",
    [
        PASSWORD,
        ascii(PASSWORD)[1:-1],
        quote_plus(PASSWORD),
        base64.b64encode(PASSWORD.encode()).decode(),
        base64.urlsafe_b64encode(PASSWORD.encode()).decode(),
    ],
)
def test_a_text_that_repeats_what_was_sent_is_left_out_however_it_is_spelled(spelling: str) -> None:
    """L1."""
    reason = reason_of(ValueError(f"cannot bind with {spelling}"), sent=["alice", PASSWORD])
    assert reason == "ValueError, and its text, which repeats what was sent, is left out"


def test_a_reason_has_an_end() -> None:
    assert len(reason_of(ValueError("long " * 10_000))) == LONGEST_REASON
