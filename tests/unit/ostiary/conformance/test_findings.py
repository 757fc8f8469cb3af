"""How programs are started and judged, whichever protocol they speak."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ostiary.conformance.findings import (
    CannotStart,
    NothingToCheck,
    ProgramRun,
    Result,
    Rule,
    Wrong,
    any_run,
    check_exit,
    check_output_size,
    check_prints,
    check_speed,
    check_start,
    check_time_limit,
    each,
    ended_well,
    find_program,
    findings,
    run_program,
    wrong_by,
    wrong_if,
)
from ostiary.core.process import Ending, RunLimits, Stdin

LIMITS = RunLimits(seconds=30)


@dataclass(frozen=True)
class Run(ProgramRun):
    name: str = "asked"
    ending: Ending = Ending.EXITED
    exit_code: int = 0
    seconds: float = 0.1
    ended_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    stdout: bytes = b"{}"
    stderr: bytes = b""

    @property
    def asked_for(self) -> str:
        return self.name


@dataclass(frozen=True)
class Seen:
    runs: tuple[Run, ...] = field(default=(Run(),))
    start_error: str | None = None


@dataclass(frozen=True)
class Refused:
    cause: str
    hint: str | None = None


# --- starting ---


def test_a_program_that_is_not_there_cannot_start() -> None:
    with pytest.raises(CannotStart, match="not on PATH"):
        find_program("ostiary-there-is-no-such-program")


def test_a_file_that_is_no_program_cannot_start(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("text")
    with pytest.raises(CannotStart, match="Permission denied"):
        run_program(str(file), [str(file)], env={}, stdin=Stdin.NOTHING, limits=LIMITS)


def test_an_argument_that_no_process_can_be_given_cannot_start() -> None:
    with pytest.raises(CannotStart, match="NUL byte"):
        run_program(sys.executable, [sys.executable, "a\0b"], env={}, stdin=Stdin.NOTHING, limits=LIMITS)


def test_a_program_runs_with_the_variables_added_to_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    code = "import os, sys; print(os.environ['OURS'], os.environ['THEIRS'], sys.stdin.read())"
    outcome = run_program(sys.executable, [sys.executable, "-c", code], env={"THEIRS": "2"}, stdin=b"3", limits=LIMITS)
    assert outcome.stdout.split() == [b"1", b"2", b"3"]


# --- judging ---


@pytest.mark.parametrize(
    ("run", "in_time", "well", "printed"),
    [
        (Run(), True, True, True),
        (Run(stdout=b" \n"), True, True, False),
        (Run(exit_code=1), True, False, False),
        (Run(ending=Ending.SIGNALLED, exit_code=-9), True, False, False),
        (Run(ending=Ending.TIMED_OUT, exit_code=-15), False, False, False),
    ],
)
def test_what_a_run_came_to(run: Run, in_time: bool, well: bool, printed: bool) -> None:
    assert (run.ended_in_time, run.ended_well, run.printed) == (in_time, well, printed)


def test_the_judgements_that_every_protocol_shares() -> None:
    late, large = Run(ending=Ending.TIMED_OUT), Run(ending=Ending.TOO_MUCH_OUTPUT)
    assert check_time_limit(late) == Wrong("it exceeded the time limit")
    assert check_output_size(large) == Wrong("it printed more than 1 MiB")
    assert check_prints(Run(stdout=b"\n")) == Wrong("it printed nothing on stdout")
    assert check_speed(5)(Run(seconds=5.04)) == Wrong("it took 5.0 s")
    assert check_exit(Run(exit_code=3)) == Wrong("its exit code was 3")
    assert check_start(Seen(start_error="it is not on PATH")) == Wrong("it is not on PATH")
    good = Run()
    checks = (check_time_limit, check_output_size, check_prints, check_speed(5), check_exit)
    assert [check(good) for check in checks] == [None] * 5
    assert check_start(Seen()) is None


def test_a_judgement_says_in_which_of_the_runs_it_went_wrong() -> None:
    judge = each(any_run, check_exit)
    first, second = Run(name="asked for v1"), Run(name="asked for v1beta1", exit_code=2)
    assert judge(Seen((first, second))) == Wrong("asked for v1beta1: its exit code was 2")
    assert judge(Seen((replace(first, exit_code=2), second))) == Wrong("its exit code was 2")
    assert judge(Seen((first, first))) is None


def test_a_judgement_without_a_run_that_it_applies_to_has_nothing_to_judge() -> None:
    with pytest.raises(NothingToCheck):
        each(ended_well, check_exit)(Seen((Run(exit_code=1),)))


def test_what_a_decoder_refuses_is_a_broken_rule() -> None:
    assert wrong_by(None) is None
    assert wrong_by(Refused("it is not JSON", "print JSON")) == Wrong("it is not JSON", "print JSON")
    assert wrong_if(False, "it is late") is None
    assert wrong_if(True, "it is late") == Wrong("it is late")


def test_of_a_program_that_did_not_start_only_one_rule_can_tell() -> None:
    rules: list[Rule[Seen]] = [
        Rule("starts", "it starts", Result.FAIL, "mend it", check_start),
        Rule("exit-code", "it ends with 0", Result.FAIL, "mend it", each(any_run, check_exit)),
    ]
    seen = Seen((), start_error="it is not on PATH")
    assert [finding.result for finding in findings(rules, seen, started=False)] == [Result.FAIL, Result.SKIPPED]
    assert [finding.result for finding in findings(rules, Seen(), started=True)] == [Result.PASS, Result.PASS]
