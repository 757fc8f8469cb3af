"""Common parts of the conformance checks: running a program, evidence, rules and findings.

    a check runs a program -> Evidence -> each Rule evaluates it -> ConformanceFinding -> Report

Used by `exec_plugin` and `credential_provider`. A broken rule describes what was seen and how to fix it, and never
quotes the program's output. A rule that depends on a broken one raises `NothingToCheck` and is skipped, so that each
error is reported once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Generic, Protocol, TypeVar

from ostiary.core.process import Ending, Outcome, RunLimits, Stderr, Stdin, find_executable, run

E = TypeVar("E")
R_co = TypeVar("R_co", bound="ProgramRun", covariant=True)


class Result(Enum):
    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class ConformanceFinding:
    """The result of one rule. `seen` and `fix` are empty if there is no problem."""

    rule: str
    asks: str
    result: Result
    seen: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A rule is broken. `fix` is for a remedy more precise than the rule's own."""

    seen: str
    fix: str | None = None


class NothingToCheck(Exception):
    """The rule depends on another one that is broken, or on something that cannot be observed here."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[E]):
    """One rule of a conformance check: what it requires, and how evidence is evaluated."""

    id: str
    asks: str
    severity: Result
    fix: str
    judge: Callable[[E], Wrong | None]

    def finding(self, evidence: E) -> ConformanceFinding:
        try:
            wrong = self.judge(evidence)
        except NothingToCheck:
            return self.skip()
        if wrong is None:
            return ConformanceFinding(self.id, self.asks, Result.PASS)
        return ConformanceFinding(self.id, self.asks, self.severity, wrong.seen, wrong.fix or self.fix)

    def skip(self) -> ConformanceFinding:
        return ConformanceFinding(self.id, self.asks, Result.SKIPPED)


@dataclass(frozen=True, slots=True)
class Report:
    """One finding per rule. `command` is the program's name, without its arguments."""

    command: str
    runs: int
    findings: tuple[ConformanceFinding, ...]
    stderr: str = field(default="", repr=False)
    """The stderr output of the first failed run, without possible secrets."""

    @property
    def ok(self) -> bool:
        """Return whether no rule failed; warnings do not count."""
        return self.count(Result.FAIL) == 0

    def count(self, result: Result) -> int:
        return sum(finding.result is result for finding in self.findings)


def findings(rules: Iterable[Rule[E]], evidence: E, *, started: bool) -> tuple[ConformanceFinding, ...]:
    """Return one finding per rule, in order. If the program did not start, only the rule "starts" is evaluated."""
    return tuple(rule.finding(evidence) if started or rule.id == "starts" else rule.skip() for rule in rules)


# --- running the program ---


class CannotStart(Exception):
    """The program cannot be started; the message says why."""


def find_program(name: str) -> str:
    """Return the executable of the program *name*; raises `CannotStart`."""
    executable = find_executable(name)
    if executable is None:
        raise CannotStart("it is not on PATH")
    return executable


def run_program(
    executable: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: Stdin | bytes,
    limits: RunLimits,
    while_waiting: Callable[[float], None] | None = None,
) -> Outcome:
    """Run a program to its end, with *env* added to our environment; raises `CannotStart`."""
    try:
        return run(
            executable,
            argv,
            env={**os.environ, **env},
            stdin=stdin,
            stderr=Stderr.CAPTURE,
            limits=limits,
            while_waiting=while_waiting,
        )
    except OSError as error:
        raise CannotStart(os.strerror(error.errno or 0)) from None
    except ValueError:
        raise CannotStart("its arguments or environment contain a NUL byte or other invalid data") from None


# --- evidence ---


class ProgramRun:
    """One run of a program: how it ended, and its output. Subclasses are dataclasses, and add its input."""

    ending: Ending
    exit_code: int
    seconds: float
    ended_at: datetime
    stdout: bytes
    stderr: bytes

    @property
    def asked_for(self) -> str:
        """Describe the input for the user."""
        raise NotImplementedError

    @property
    def ended_in_time(self) -> bool:
        return self.ending is not Ending.TIMED_OUT

    @property
    def ended_well(self) -> bool:
        return self.ending is Ending.EXITED and self.exit_code == 0

    @property
    def printed(self) -> bool:
        return self.ended_well and bool(self.stdout.strip())


R = TypeVar("R", bound=ProgramRun)


class Evidence(Protocol[R_co]):
    """All runs of a program."""

    @property
    def runs(self) -> Sequence[R_co]: ...

    @property
    def start_error(self) -> str | None: ...


class DecoderRefusal(Protocol):
    """Why a decoder rejects the output."""

    @property
    def cause(self) -> str | None: ...

    @property
    def hint(self) -> str | None: ...


# --- rules ---


def each(applies: Callable[[R], bool], check: Callable[[R], Wrong | None]) -> Callable[[Evidence[R]], Wrong | None]:
    """Return a rule that checks every run to which it *applies*."""
    return lambda evidence: judge_runs(filter(applies, evidence.runs), check)


def wrong_if(condition: bool, seen: str) -> Wrong | None:
    return Wrong(seen) if condition else None


def wrong_by(refusal: DecoderRefusal | None) -> Wrong | None:
    """Convert a decoder's error to a broken rule."""
    return None if refusal is None else Wrong(refusal.cause or "", refusal.hint)


def any_run(run: ProgramRun) -> bool:
    return True


def ended_in_time(run: ProgramRun) -> bool:
    return run.ended_in_time


def ended_well(run: ProgramRun) -> bool:
    return run.ended_well


def check_start(evidence: Evidence[ProgramRun]) -> Wrong | None:
    return None if evidence.start_error is None else Wrong(evidence.start_error)


def check_time_limit(run: ProgramRun) -> Wrong | None:
    return wrong_if(not run.ended_in_time, "it exceeded the time limit")


def check_output_size(run: ProgramRun) -> Wrong | None:
    return wrong_if(run.ending is Ending.TOO_MUCH_OUTPUT, "it printed more than 1 MiB")


def check_prints(run: ProgramRun) -> Wrong | None:
    return wrong_if(not run.stdout.strip(), "it printed nothing on stdout")


def check_speed(seconds: float) -> Callable[[ProgramRun], Wrong | None]:
    return lambda run: wrong_if(run.seconds > seconds, f"it took {run.seconds:.1f} s")


def judge_runs(runs: Iterable[R], check: Callable[[R], Wrong | None]) -> Wrong | None:
    """Check every run, and name the runs that failed unless all failed in the same way."""
    judged = [(run, check(run)) for run in runs]
    if not judged:
        raise NothingToCheck
    wrongs = [(run, wrong) for run, wrong in judged if wrong is not None]
    if not wrongs:
        return None
    if len(wrongs) == len(judged) and len({wrong.seen for _, wrong in wrongs}) == 1:
        return wrongs[0][1]
    return Wrong("; ".join(f"{run.asked_for}: {wrong.seen}" for run, wrong in wrongs), wrongs[0][1].fix)


def check_exit(run: ProgramRun) -> Wrong | None:
    if run.ending is Ending.SIGNALLED:
        return Wrong(f"signal {-run.exit_code} ended it")
    failed = run.ending is Ending.EXITED and run.exit_code != 0
    return Wrong(f"its exit code was {run.exit_code}") if failed else None


def is_held(pipe: int | None) -> bool | None:
    """Return whether any process has the pipe of this inode open; None where the system does not show it."""
    if pipe is None or not os.path.isdir("/proc/self/fd"):
        return None
    name = f"pipe:[{pipe}]"
    return any(name in _open_files(number) for number in os.listdir("/proc") if number.isdigit())


def _open_files(number: str) -> Iterator[str]:
    folder = f"/proc/{number}/fd"
    try:
        for descriptor in os.listdir(folder):
            yield os.readlink(f"{folder}/{descriptor}")
    except OSError:
        # The process has ended meanwhile, or may not be inspected.
        return
