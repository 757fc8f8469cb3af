"""RFC 3339 times as Go parses them, which is wider than the standard and narrower than Python's parser.

A comma may precede the fraction, and the hour may have one digit; the letters are upper case. A time outside of
Python's range becomes the nearest one within it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_FORM = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)T(?P<hour>\d\d?):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:[.,](?P<fraction>\d+))?(?:Z|(?P<sign>[+-])(?P<zone_hours>\d\d):(?P<zone_minutes>\d\d))",
    re.ASCII,
)
# Go's zero time, which means "no time" in Kubernetes.
ZERO = datetime(1, 1, 1, tzinfo=UTC)
_FIRST, _LAST = ZERO + timedelta(microseconds=1), datetime.max.replace(tzinfo=UTC)
# For a year outside of Python's range only the calendar matters, which repeats every 400 years.
_SAME_CALENDAR = 400


def parse_rfc3339(text: str) -> datetime:
    """Parse *text* like Go's ``time.Parse(time.RFC3339, text)``, in UTC; raises ValueError, without the text."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError("not a time of RFC 3339")
    year, month, day, hour, minute, second = (
        int(match[name]) for name in ("year", "month", "day", "hour", "minute", "second")
    )
    moment = datetime(
        year or _SAME_CALENDAR, month, day, hour, minute, second, _microseconds(match["fraction"]), tzinfo=UTC
    )
    offset = _offset(match)
    if not year:
        moment -= offset
        # West of Greenwich, the last hours of the year 0 are in the year 1 in UTC.
        return moment.replace(year=1) if moment.year > _SAME_CALENDAR else _FIRST
    try:
        return moment - offset
    except OverflowError:
        return _FIRST if offset > timedelta(0) else _LAST


def _microseconds(fraction: str | None) -> int:
    return int((fraction or "0")[:6].ljust(6, "0"))


def _offset(match: re.Match[str]) -> timedelta:
    if match["sign"] is None:
        return timedelta(0)
    hours, minutes = int(match["zone_hours"]), int(match["zone_minutes"])
    # Go accepts 24 hours and 60 minutes, "as some people do write offsets of" these.
    if hours > 24 or minutes > 60:
        raise ValueError("no such zone")
    offset = timedelta(hours=hours, minutes=minutes)
    return offset if match["sign"] == "+" else -offset
