"""Quantities are read exactly as Kubernetes reads them, and never counted too low."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ostiary_gateway.wire.quantity import LARGEST, format_quantity, is_binary, parse_quantity

# What k8s.io/apimachinery/pkg/api/resource makes of them, in thousandths.
VECTORS = {
    "0": 0,
    "1": 1000,
    "100m": 100,
    "1500m": 1500,
    "0.5": 500,
    ".5": 500,
    "5.": 5000,
    "+1": 1000,
    "-1": -1000,
    "-500m": -500,
    "1k": 1_000_000,
    "1Ki": 1_024_000,
    "1.5Gi": 1_610_612_736_000,
    "128Mi": 134_217_728_000,
    "2M": 2_000_000_000,
    "1E": 10**21,
    "1e3": 1_000_000,
    "1E3": 1_000_000,
    "1e-3": 1,
    "12e0": 12_000,
    "1n": 1,
    "1u": 1,
    "1001u": 2,
    "-1n": -1,
    "0.0001": 1,
    "9223372036854775807": LARGEST * 1000,
    "7Ei": 7 * 1024**6 * 1000,
}


def test_a_quantity_is_what_kubernetes_says_it_is(subtests: pytest.Subtests) -> None:
    for text, thousandths in VECTORS.items():
        with subtests.test(text=text, thousandths=thousandths):
            assert parse_quantity(text) == thousandths


def test_what_cannot_be_counted_is_no_quantity(subtests: pytest.Subtests) -> None:
    cases: list[object] = [
        *("", " 1", "1 ", "1 Gi", "1gi", "1K", "1mi", "e3", "1e", "1e3k", "1ee3", "0x10", "1_000", "١", "1Gi\n", "--1"),
        *("1..5", ".", "+", "NaN", "Infinity", "1e99", "1e999", "1e9999", "8Ei", "9223372036854775808", "9" * 65),
        *(None, True, 1.5, [], {}, 2**63),
    ]
    for value in cases:
        with subtests.test(value=value), pytest.raises(ValueError, match=r"not a quantity|too large"):
            parse_quantity(value)


def test_a_plain_number_counts_too() -> None:
    assert parse_quantity(3) == 3000


@given(some.integers(0, LARGEST), some.booleans())
def test_what_is_written_is_read_as_the_same(number: int, binary: bool) -> None:
    assert parse_quantity(format_quantity(number, binary=binary)) == number


@given(some.fractions(0, 10**9), some.sampled_from(["", "m", "k", "Ki", "Gi", "u", "n"]))
def test_rounding_only_ever_adds_less_than_a_thousandth(number: Fraction, unit: str) -> None:
    digits = f"{float(number):.9f}"
    sizes: dict[str, Fraction | int] = {
        "": 1,
        "m": Fraction(1, 10**3),
        "u": Fraction(1, 10**6),
        "n": Fraction(1, 10**9),
    }
    sizes |= {"k": 1000, "Ki": 1024, "Gi": 1024**3}
    exact = Fraction(digits) * sizes[unit] * 1000
    assert 0 <= parse_quantity(digits + unit) - exact < 1


def test_it_is_written_in_the_shortest_form(subtests: pytest.Subtests) -> None:
    cases = [
        (0, False, "0"),
        (1500, False, "1500m"),
        (2000, False, "2"),
        (3_000_000, False, "3k"),
        (1_610_612_736_000, True, "1536Mi"),
        (1_024_000, True, "1Ki"),
        (500, True, "500m"),
    ]
    for thousandths, binary, text in cases:
        with subtests.test(thousandths=thousandths, binary=binary, text=text):
            assert format_quantity(thousandths, binary=binary) == text


def test_a_binary_unit_is_seen() -> None:
    assert (is_binary("1Gi"), is_binary("1G"), is_binary("5")) == (True, False, False)
