"""Text from outside cannot steer the terminal it is printed on."""

from __future__ import annotations

from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.text import age_text, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "U+001B[31mredU+001B[0m"),
        ("back\x08\x7fspace", "backU+0008U+007Fspace"),
        ("right\u202eleft\x9b2J", "rightU+202EleftU+009B2J"),
    ],
    ids=["a colour", "backspace and delete", "reversed text and a one-byte escape"],
)
def test_what_steers_a_terminal_is_spelled_out(text: str, shown: str) -> None:
    """TestCleanANSIEscapeCodes, the denied ones."""
    assert printable(text) == shown


def test_what_people_write_stays_as_it_is(subtests: pytest.Subtests) -> None:
    """TestCleanANSIEscapeCodes, the allowed ones."""
    cases = [
        ("nothing", ""),
        ("plain", "brew install acme-login"),
        ("layout", "first line\n\tsecond line\r\n\v\f"),
        ("letters", "día, größer, 東京, привет"),
        ("marks", "e\u0301 is e with a combining mark"),
        ("numbers and symbols", "½ of ⅻ, “quoted” – €5 + 😀"),
        ("separators", "non-breaking\u00a0space and\u2028line separator"),
    ]
    for case, text in cases:
        with subtests.test(case):
            assert printable(text) == text


@given(st.text())
def test_no_control_character_is_ever_shown(text: str) -> None:
    assert all(category(char)[0] != "C" or char in "\t\n\v\f\r" for char in printable(text))


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S", "Z"])))
def test_nothing_else_is_changed(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (119.0, "119s"), (120.0, "2m"), (7200.0, "2h"), (172800.0, "2d")]
)
def test_an_age_reads_as_in_kubectl(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
