"""What the commands that read audit logs share: progress on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io

import pytest

from ostiary_gateway.cli.policy.log_reading import counting, print_skipped


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_erased_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with counting() as counts:
        counts.lines = 1_000_000
        assert counts.on_progress is not None
        counts.on_progress(counts.lines)
    assert terminal.getvalue() == "\r1,000,000 events\r\x1b[K"


def test_nothing_is_shown_where_nobody_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    with counting() as counts:
        assert counts.on_progress is None
        counts.lines = 1_000_000
    assert capsys.readouterr() == ("", "")


def test_what_was_skipped_is_told_by_its_places(capsys: pytest.CaptureFixture[str]) -> None:
    with counting() as counts:
        print_skipped(counts)
        for number in range(1, 10):
            counts.count_unreadable("a.log", number)
    print_skipped(counts)
    said = capsys.readouterr().err
    assert said == (
        "ostiary: 9 lines are not audit events and were skipped: a.log:1, a.log:2, a.log:3, a.log:4, a.log:5, ...\n"
    )
