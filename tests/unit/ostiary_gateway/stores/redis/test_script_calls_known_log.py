"""What a process knows of the log is bounded, and the latest of it is kept."""

from __future__ import annotations

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.redis.rows import LogEntry
from ostiary_gateway.stores.redis.script_calls import MOST_REMEMBERED, KnownLog


def entry(number: int, *, gap: bool = False) -> LogEntry:
    revocation = None if gap else Revocation(RevocationKind.USER, str(number))
    return LogEntry(number, f"id {number}", b"", revocation, False)


def test_nothing_is_said_of_a_log_that_is_not_known() -> None:
    log = KnownLog()
    assert log.arguments == ("", " ")
    log.note_head(7, "id era")
    assert log.arguments == ("7", "id era")


def test_the_latest_so_many_are_remembered_each_once() -> None:
    log = KnownLog()
    for start in (0, MOST_REMEMBERED):
        log.remember(entry(number) for number in range(start, MOST_REMEMBERED + 10))
    assert [each.number for each in log.entries()] == list(range(10, MOST_REMEMBERED + 10))


def test_a_gap_is_nothing_to_restore() -> None:
    log = KnownLog()
    log.remember([entry(1), entry(2, gap=True)])
    assert [each.number for each in log.entries()] == [1]
