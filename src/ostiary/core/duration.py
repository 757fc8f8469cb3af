"""Durations as Go writes and reads them: ``1h30m``, ``300ms``, ``-1m0s``.

Called wherever a Kubernetes configuration or answer holds a ``metav1.Duration``. Such a value is always text:
a bare number has no unit, and Go refuses it.
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
# Go keeps a duration in 64 bits, and an int64 reaches one further down than up.
_LIMIT = 2**63


class DurationError(ValueError):
    """A text is not a duration. Neither the message nor the hint quotes it: it may come from a plugin."""

    def __init__(self, message: str, hint: str = "write a number with its unit, as in 10m, 1h30m or 300s") -> None:
        super().__init__(message)
        self.hint = hint


def parse_duration(text: str) -> timedelta:
    """The duration that Go's ``time.ParseDuration`` reads from *text*; raises `DurationError`.

    What is finer than a microsecond is rounded away from zero, so that no duration loses its sign.
    """
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    # Go reads the fraction as a float; doing the same gives the same nanoseconds.
    nanoseconds = 0 if unsigned == "0" else _sum_of_parts(unsigned)
    negative = text.startswith("-")
    if nanoseconds > _LIMIT - (not negative):
        raise _too_long()
    microseconds = -(-nanoseconds // 1000)
    return timedelta(microseconds=-microseconds if negative else microseconds)


def format_duration(duration: timedelta) -> str:
    """*duration* as Go prints it: without leading zero units, and down to the second at least."""
    microseconds = duration // timedelta(microseconds=1)
    sign, rest = ("-" if microseconds < 0 else ""), abs(microseconds)
    if rest == 0:
        return "0s"
    if rest < 1_000:
        return f"{sign}{rest}\u00b5s"
    if rest < 1_000_000:
        return f"{sign}{_decimal(rest, 3)}ms"
    minutes, rest = divmod(rest, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    larger = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{larger}{_decimal(rest, 6)}s"


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
    # No valid duration has more digits than an int64, and Python refuses to read very long numbers.
    if len(whole.lstrip("0")) > 19:
        raise _too_long()
    # Go, too, stops reading a fraction where an int64 is full.
    digits = fraction[:18]
    return int(whole or "0") * scale + int(float(int(digits or "0")) * (scale / 10.0 ** len(digits)))


def _too_long() -> DurationError:
    return DurationError("it is an invalid duration: longer than 292 years")


def _decimal(value: int, places: int) -> str:
    whole, fraction = divmod(value, 10**places)
    digits = f"{fraction:0{places}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
