"""What the checks of foreign programs share: rules, what they find, and a look at what a program leaves behind.

    a check runs a program -> evidence -> each Rule looks at it -> Finding -> Report

A rule that fails says what was seen and how to mend it, and never quotes what the program printed. A rule that
stands behind another broken one raises `NothingToJudge` and is skipped, so that one mistake is told once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

E = TypeVar("E")


class Result(Enum):
    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found. `seen` and `fix` are empty when there is nothing to mend."""

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

    @property
    def ok(self) -> bool:
        """Whether no rule failed; warnings do not count."""
        return self.count(Result.FAIL) == 0

    def count(self, result: Result) -> int:
        return sum(finding.result is result for finding in self.findings)


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
