"""During an outage a line is written once per interval, with the number of those that were left out."""

from __future__ import annotations

import logging

import pytest

from ostiary_gateway.observability.repeated_log import INTERVAL_SECONDS, RepeatedLog
from ostiary_gateway.testing import FakeClock

LOG = logging.getLogger("ostiary.test.repeated")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOG.name)
    return caplog


def left_out(lines: pytest.LogCaptureFixture) -> list[int]:
    return [getattr(record, "left_out", 0) for record in lines.records]


def test_the_first_line_is_written_and_the_next_after_the_interval_counts_the_rest(
    lines: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    repeated = RepeatedLog(LOG, clock)
    for _ in range(4):
        repeated.write(logging.WARNING, "it is down", {"cause": "refused"})
    clock.advance(INTERVAL_SECONDS)
    repeated.write(logging.WARNING, "it is down", {"cause": "refused"})
    repeated.write(logging.WARNING, "it is down", {"cause": "refused"})
    assert left_out(lines) == [0, 3]


def test_another_message_or_cause_is_written_at_once(lines: pytest.LogCaptureFixture) -> None:
    repeated = RepeatedLog(LOG, FakeClock())
    repeated.write(logging.WARNING, "it is down", {"cause": "refused"})
    repeated.write(logging.WARNING, "it is down", {"cause": "timed out"})
    repeated.write(logging.ERROR, "it rejects us", {"cause": "refused"})
    assert len(lines.records) == 3


def test_the_end_of_an_outage_tells_how_many_lines_were_left_out_and_begins_anew(
    lines: pytest.LogCaptureFixture,
) -> None:
    repeated = RepeatedLog(LOG, FakeClock())
    for _ in range(3):
        repeated.write(logging.WARNING, "it is down", {"cause": "refused"})
    assert repeated.end() == 2
    assert repeated.end() == 0
    repeated.write(logging.WARNING, "it is down", {"cause": "refused"})
    assert left_out(lines) == [0, 0]
