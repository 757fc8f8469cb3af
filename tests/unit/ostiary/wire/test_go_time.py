"""Times as Go's ``time.Parse(time.RFC3339, ...)`` reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.wire.go_time import ZERO, parse_rfc3339


def test_forms_that_go_takes(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, datetime]] = [
        ("2030-01-31T12:00:00Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31T1:00:00Z", datetime(2030, 1, 31, 1, tzinfo=UTC)),
        ("2030-01-31T12:00:00,5Z", datetime(2030, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),
        ("2030-01-31T12:00:00.123456789012Z", datetime(2030, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)),
        ("2030-01-31T12:00:00+24:60", datetime(2030, 1, 30, 11, tzinfo=UTC)),
        ("2032-02-29T00:00:00-01:30", datetime(2032, 2, 29, 1, 30, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", ZERO),
        ("0001-01-01T01:00:00+01:00", ZERO),
        ("0000-02-29T00:00:00Z", ZERO + timedelta(microseconds=1)),
        ("0001-01-01T00:00:00+01:00", ZERO + timedelta(microseconds=1)),
        ("9999-12-31T23:59:59-01:00", datetime.max.replace(tzinfo=UTC)),
    ]
    for text, moment in cases:
        with subtests.test(text=text, moment=moment):
            assert parse_rfc3339(text) == moment


def test_forms_that_go_refuses(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        "2030-01-31",
        "2030-01-31T12:00:00",
        "2030-01-31t12:00:00Z",
        "2030-01-31T12:00:00z",
        "2030-01-31 12:00:00Z",
        "2030-1-31T12:00:00Z",
        "2030-01-31T12:0:00Z",
        "2030-01-31T12:00:60Z",
        "2030-01-31T24:00:00Z",
        "2030-02-30T12:00:00Z",
        "2031-02-29T12:00:00Z",
        "0001-02-29T00:00:00Z",
        "2030-13-01T12:00:00Z",
        "2030-01-31T12:00:00+25:00",
        "2030-01-31T12:00:00+00:61",
        "2030-01-31T12:00:00+0100",
        "2030-01-31T12:00:00.Z",
        "2030-01-31T12:00:00Z ",
        "1893456000",
        "٢٠٣٠-01-31T12:00:00Z",
    ]
    for text in cases:
        with subtests.test(text=text):
            with pytest.raises(ValueError, match="") as refused:
                parse_rfc3339(text)
            assert not text or text not in str(refused.value)


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)), st.integers(-1439, 1439))
def test_a_time_that_python_writes_is_read_as_the_same_moment(moment: datetime, minutes: int) -> None:
    written = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert parse_rfc3339(written.isoformat()) == written
