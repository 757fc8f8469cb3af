"""What the checks of foreign programs share: rules, what they find, how runs are judged, what a program leaves behind.

    a check runs a program -> evidence -> each Rule looks at it -> Finding -> Report

A rule that fails says what was seen and how to mend it, and never quotes what the program printed. A rule that
stands behind another broken one raises `NothingToJudge` and is skipped, so that one mistake is told once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar

from ostiary.core.process import Ending

E = TypeVar("E")


class Result(Enum):
    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found. `seen` and `fix` are empty when there is no problem."""

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


class NothingToJudge(Exception):
    """The rule stands behind another one that is broken, or behind something we cannot see here."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[E]):
    id: str
    asks: str
    severity: Result
    fix: str
    judge: Callable[[E], Wrong | None]

    def finding(self, evidence: E) -> Finding:
        try:
            wrong = self.judge(evidence)
        except NothingToJudge:
            return self.skipped()
        if wrong is None:
            return Finding(self.id, self.asks, Result.PASS)
        return Finding(self.id, self.asks, self.severity, wrong.seen, wrong.fix or self.fix)

    def skipped(self) -> Finding:
        return Finding(self.id, self.asks, Result.SKIPPED)


@dataclass(frozen=True, slots=True)
class Report:
    """One finding per rule. `command` is the program's name, without its arguments."""

    command: str
    runs: int
    findings: tuple[Finding, ...]
    stderr: str = field(default="", repr=False)
    """What the program said on stderr in the first run that failed, without what may be a secret."""

    @property
    def ok(self) -> bool:
        """Whether no rule failed; warnings do not count."""
        return self.count(Result.FAIL) == 0

    def count(self, result: Result) -> int:
        return sum(finding.result is result for finding in self.findings)


def findings(rules: Iterable[Rule[E]], evidence: E, *, started: bool) -> tuple[Finding, ...]:
    """One finding per rule, in their order. Of a program that did not start only the rule "starts" can tell."""
    return tuple(rule.finding(evidence) if started or rule.id == "starts" else rule.skipped() for rule in rules)


class ProgramRun(Protocol):
    """One run of a program, as far as it is looked at here."""

    @property
    def asked_for(self) -> str: ...
    @property
    def ending(self) -> Ending: ...
    @property
    def exit_code(self) -> int: ...


R = TypeVar("R", bound=ProgramRun)


def judge_runs(runs: Iterable[R], check: Callable[[R], Wrong | None]) -> Wrong | None:
    """Judge every run, and say in which of them it went wrong unless it was the same in all."""
    judged = [(run, check(run)) for run in runs]
    if not judged:
        raise NothingToJudge
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
    """Whether any process has the pipe of this inode open; None where the system does not show it."""
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
        # It has ended meanwhile, or is not ours to look at.
        return
