"""Go durations: ``1h30m``, ``300ms``, ``-1m0s``.

The format of ``metav1.Duration`` in Kubernetes configurations and responses. Such a value is always text: a bare number
has no unit, and Go rejects it.
"""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # the micro sign
    "\u03bcs": 1_000,  # the Greek letter mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")
# Go stores a duration in a 64-bit integer, whose minimum is one further from zero than its maximum.
_LIMIT = 2**63


class DurationError(ValueError):
    """The text is not a duration. Neither message nor hint quotes it: it may come from a plugin."""

    def __init__(self, message: str, hint: str = "write a number with its unit, as in 10m, 1h30m or 300s") -> None:
        super().__init__(message)
        self.hint = hint


def parse_duration(text: str) -> timedelta:
    """Parse *text* like Go's ``time.ParseDuration``; raises `DurationError`.

    Anything finer than a microsecond is rounded away from zero, so that no duration loses its sign.
    """
    nanoseconds = parse_nanoseconds(text)
    microseconds = -(-abs(nanoseconds) // 1000)
    return timedelta(microseconds=-microseconds if nanoseconds < 0 else microseconds)


def parse_nanoseconds(text: str) -> int:
    """Like `parse_duration`, but in nanoseconds, which is Go's precision."""
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    nanoseconds = 0 if unsigned == "0" else _sum_of_parts(unsigned)
    is_negative = text.startswith("-")
    if nanoseconds > _LIMIT - (not is_negative):
        raise _too_long()
    return -nanoseconds if is_negative else nanoseconds


def format_duration(duration: timedelta) -> str:
    """Format *duration* like Go: without leading zero units, and at least with seconds."""
    return format_nanoseconds(duration // timedelta(microseconds=1) * 1000)


def format_nanoseconds(nanoseconds: int) -> str:
    """Like `format_duration`, but for a number of nanoseconds."""
    sign, rest = ("-" if nanoseconds < 0 else ""), abs(nanoseconds)
    if rest == 0:
        return "0s"
    for unit, places in (("ns", 0), ("\u00b5s", 3), ("ms", 6)):
        if rest < 10 ** (places + 3):
            return f"{sign}{_decimal(rest, places)}{unit}"
    minutes, rest = divmod(rest, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    larger = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{larger}{_decimal(rest, 9)}s"


def _sum_of_parts(text: str) -> int:
    if not text:
        raise DurationError("it is an empty duration")
    total, position = 0, 0
    while position < len(text):
        part = _PART.match(text, position)
        assert part is not None, "the expression matches any text, if need be the empty one"
        total += _nanoseconds(part[1], part[2] or "", part[3])
        if total > _LIMIT:
            raise _too_long()
        position = part.end()
    return total


def _nanoseconds(whole: str, fraction: str, unit: str) -> int:
    if not whole and not fraction:
        raise DurationError("it is an invalid duration: a number is missing")
    if not unit:
        raise DurationError("missing unit in duration", "write the unit too: 5m is five minutes, 300s as many seconds")
    if unit not in _UNITS:
        raise DurationError("unknown unit in duration", "the units are h, m, s, ms, us and ns; a day is 24h")
    scale = _UNITS[unit]
    # No valid duration has more digits than an int64, and Python does not parse very long numbers.
    if len(whole.lstrip("0")) > 19:
        raise _too_long()
    return int(whole or "0") * scale + _fraction(fraction, scale)


def _fraction(digits: str, scale: int) -> int:
    """Return the nanoseconds of a fraction. Go parses it as a float, and so do we, to get the same number."""
    numerator, places = 0, 0
    for digit in digits:
        # Go also stops when its integer is full.
        if numerator > (_LIMIT - 1) // 10 or numerator * 10 + int(digit) > _LIMIT:
            break
        numerator, places = numerator * 10 + int(digit), places + 1
    return int(float(numerator) * (scale / 10.0**places))


def _too_long() -> DurationError:
    return DurationError("it is an invalid duration: longer than 292 years")


def _decimal(value: int, places: int) -> str:
    whole, fraction = divmod(value, 10**places)
    digits = f"{fraction:0{places}d}".rstrip("0") if places else ""
    return f"{whole}.{digits}" if digits else str(whole)
