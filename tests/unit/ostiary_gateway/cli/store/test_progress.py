"""How far a long command is: only on a terminal, not too often, and nothing of it is left."""

from __future__ import annotations

import io
import sys

import pytest

from ostiary_gateway.cli.store_migrate import Progress, rate


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return [100.0]


def progress(seconds: list[float], expected: int | None) -> Progress:
    return Progress("copying", expected, now=lambda: seconds[0])


def test_a_terminal_shows_one_line_that_is_written_over(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    shown = progress(seconds, 12_345)
    seconds[0] += 2
    shown(4_000)
    seconds[0] += 0.01
    shown(4_500)
    seconds[0] += 0.99
    shown(6_000)
    shown.close()
    assert terminal.getvalue() == (
        "\r\x1b[Kcopying 4,000 of about 12,345 sessions, 2,000 per second"
        "\r\x1b[Kcopying 6,000 of about 12,345 sessions, 2,000 per second"
        "\r\x1b[K"
    )


def test_nothing_is_printed_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: list[float]
) -> None:
    shown = progress(seconds, None)
    shown(10)
    shown.close()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", None)
    progress(seconds, None)(10)


def test_how_many_there_are_may_be_unknown(seconds: list[float]) -> None:
    shown = progress(seconds, None)
    seconds[0] += 4
    assert shown.text(1_000) == "copying 1,000 sessions, 250 per second"
    assert rate(10, 0.0) == 0.0
