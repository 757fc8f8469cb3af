"""Kubernetes quantities: ``500m``, ``1.5Gi``, ``2e3``. Pure.

They are parsed exactly, counted in thousandths, and formatted as in Kubernetes. The grammar is that of
``k8s.io/apimachinery/pkg/api/resource``. Kubernetes counts CPU time in thousandths; smaller fractions are rounded up,
so that a sum is never too low.
"""

from __future__ import annotations

import re
from fractions import Fraction

# Kubernetes caps larger values. They are rejected here: a capped number would be counted wrong.
LARGEST = 2**63 - 1
THOUSANDTHS = 1000
LONGEST_TEXT = 64

_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<digits>[0-9]+\.?[0-9]*|\.[0-9]+)(?:(?P<unit>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?",
    re.ASCII,
)
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def parse_quantity(value: object) -> int:
    """Parse a JSON value, in thousandths; raises `ValueError` with a message that does not quote it."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("it is not a quantity")
    if isinstance(value, int):
        return _to_thousandths(Fraction(value))
    match = _GRAMMAR.fullmatch(value) if len(value) <= LONGEST_TEXT else None
    if match is None:
        raise ValueError("it is not a quantity")
    number = Fraction(match["sign"] + match["digits"])
    unit = match["unit"] or ""
    if unit in _BINARY:
        return _to_thousandths(number * _BINARY[unit])
    exponent = int(match["exponent"]) if match["exponent"] else _DECIMAL[unit]
    return _to_thousandths(number * Fraction(10) ** exponent)


def is_binary(text: str) -> bool:
    """Whether a quantity is written with a binary unit."""
    return text.endswith("i")


def format_quantity(thousandths: int, *, binary: bool = False) -> str:
    """Return the shortest form without a fraction, as Kubernetes writes it: ``1500m``, ``2``, ``3k``; ``1536Mi``."""
    if thousandths % THOUSANDTHS:
        return f"{thousandths}m"
    number = thousandths // THOUSANDTHS
    units = _BINARY if binary else {unit: 10**power for unit, power in _DECIMAL.items() if power > 0}
    for unit, size in reversed(units.items()):
        if number and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _to_thousandths(number: Fraction) -> int:
    if abs(number) > LARGEST:
        raise ValueError("it is too large")
    # Away from zero, as Kubernetes rounds.
    rounded = -(-abs(number) * THOUSANDTHS // 1)
    return int(rounded) if number >= 0 else -int(rounded)
