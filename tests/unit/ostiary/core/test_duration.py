"""Durations are read and written exactly as Go does it."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostiary.core.duration import DurationError, format_duration, parse_duration, parse_nanoseconds

US = timedelta(microseconds=1)
# The longest whole number of microseconds that fits Go's 64 bits of nanoseconds.
LONGEST = timedelta(microseconds=(2**63 - 1) // 1000)


def test_go_durations_are_read(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, timedelta]] = [
        ("0", timedelta(0)),
        ("+0", timedelta(0)),
        ("-0", timedelta(0)),
        ("0s", timedelta(0)),
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("1.5h", timedelta(hours=1, minutes=30)),
        ("300ms", timedelta(milliseconds=300)),
        ("1us", US),
        ("1µs", US),
        ("1\u03bcs", US),
        ("+5m", timedelta(minutes=5)),
        (".5s", timedelta(milliseconds=500)),
        ("5.s", timedelta(seconds=5)),
        ("-1s", timedelta(seconds=-1)),
        ("1m1m", timedelta(minutes=2)),
        ("1s1h", timedelta(hours=1, seconds=1)),
        ("-1.5h", timedelta(hours=-1, minutes=-30)),
        ("1000ns", US),
        ("3000000000ns", timedelta(seconds=3)),
        ("0000000000000000000000001s", timedelta(seconds=1)),
        ("0.100000000000000000000000000001s", timedelta(milliseconds=100)),
        ("9223372036854775us", timedelta(microseconds=9223372036854775)),
        ("2562047h47m16.854775s", LONGEST),
    ]
    for text, duration in cases:
        with subtests.test(text=text, duration=duration):
            assert parse_duration(text) == duration


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("-0.3333333333333333333h1ns", -1_200_000_000_001),
        ("0.63523137338305551568h", 2_286_832_944_179),
        ("0.9223372036854775809h", 3_320_413_933_267),
        ("0.999999999999999999999h", 3_600_000_000_000),
        ("0.0000000000000000001h", 0),
    ],
)
def test_a_long_fraction_has_the_precision_of_go(text: str, nanoseconds: int) -> None:
    """Its digits count as far as 63 bits hold them."""
    assert parse_nanoseconds(text) == nanoseconds


def test_what_go_refuses_is_refused_with_a_hint(subtests: pytest.Subtests) -> None:
    cases = [
        ("5", "missing unit in duration"),
        ("1h1", "missing unit in duration"),
        ("1d", "unknown unit in duration"),
        ("1M", "unknown unit in duration"),
        ("1 m", "unknown unit in duration"),
        ("1m ", "unknown unit in duration"),
        ("", "empty duration"),
        (" 1m", "a number is missing"),
        ("m", "a number is missing"),
        (".", "a number is missing"),
        (".s", "a number is missing"),
        ("-", "empty duration"),
        ("--1s", "a number is missing"),
        ("1e3s", "unknown unit in duration"),
        ("١s", "a number is missing"),
        ("9223372036854775808ns", "longer than 292 years"),
        ("2562048h", "longer than 292 years"),
        ("2562047h2562047h", "longer than 292 years"),
        ("9" * 5000 + "h", "longer than 292 years"),
    ]
    for text, message in cases:
        with subtests.test(text=text, message=message):
            with pytest.raises(DurationError, match=message) as caught:
                parse_duration(text)
            assert caught.value.hint


def test_the_most_negative_duration_reaches_one_nanosecond_further_than_the_longest() -> None:
    parse_duration("-9223372036854775808ns")
    with pytest.raises(DurationError):
        parse_duration("-9223372036854775809ns")


@pytest.mark.parametrize(("text", "duration"), [("1ns", US), ("-1ns", -US), ("1001ns", 2 * US), ("21.6µs", 22 * US)])
def test_a_fraction_of_a_microsecond_keeps_its_sign(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


def test_an_error_does_not_quote_the_text() -> None:
    with pytest.raises(DurationError) as caught:
        parse_duration("hunter2")
    assert "hunter" not in str(caught.value) + caught.value.hint


def test_durations_are_written_as_go_prints_them(subtests: pytest.Subtests) -> None:
    cases: list[tuple[timedelta, str]] = [
        (timedelta(0), "0s"),
        (US, "1µs"),
        (timedelta(microseconds=1100), "1.1ms"),
        (timedelta(milliseconds=2), "2ms"),
        (timedelta(milliseconds=2200), "2.2s"),
        (timedelta(seconds=1), "1s"),
        (timedelta(minutes=-1), "-1m0s"),
        (timedelta(minutes=3, milliseconds=500), "3m0.5s"),
        (timedelta(hours=1), "1h0m0s"),
        (timedelta(hours=1, minutes=30), "1h30m0s"),
        (timedelta(days=2), "48h0m0s"),
        (timedelta(microseconds=-21), "-21µs"),
        (LONGEST, "2562047h47m16.854775s"),
    ]
    for duration, text in cases:
        with subtests.test(duration=duration, text=text):
            assert format_duration(duration) == text


@settings(deadline=None)
@given(st.timedeltas(min_value=-LONGEST, max_value=LONGEST))
def test_what_is_written_is_read_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@settings(deadline=None)
@given(st.text(alphabet="0123456789.hmsnuµ+- d") | st.text())
@example("1" * 100_000)
def test_any_text_is_a_duration_or_a_duration_error(text: str) -> None:
    with suppress(DurationError):
        parse_duration(text)
