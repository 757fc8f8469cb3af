"""Durations are Go's, line by line of what Go itself answered."""

from __future__ import annotations

from ostiary.core.duration import DurationError, format_nanoseconds, parse_nanoseconds
from tests.support.vectors import Vector, replay


def difference(vector: Vector) -> str | None:
    try:
        nanoseconds = parse_nanoseconds(vector["text"])
    except DurationError as error:
        return None if "error" in vector else f"{vector['text']!r} is refused: {error}"
    if "error" in vector:
        return f"{vector['text']!r} is taken"
    expected = (vector["nanoseconds"], vector["printed"])
    actual = (nanoseconds, format_nanoseconds(nanoseconds))
    return None if actual == expected else f"{vector['text']!r}: {actual}, expected {expected}"


def test_every_duration_is_read_and_printed_as_by_go() -> None:
    replay("durations", difference)
