"""What the rules about mirrors find in one file, and which mirrors it names."""

from __future__ import annotations

from dataclasses import dataclass, field

from ostiary.model import Place, Problem
from ostiary.registry.check.lint_reading import LintFinding, Severity


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A mirror, as host and path, of a registry; `registry` is empty if the mirror is for all of them."""

    registry: str
    mirror: str
    place: Place


@dataclass(slots=True)
class MirrorFindings:
    files: list[str] = field(default_factory=list)
    findings: list[LintFinding] = field(default_factory=list)
    mirrored: list[Mirrored] = field(default_factory=list)

    def add(self, severity: Severity, rule: str, place: Place, message: str, fix: str = "") -> None:
        self.findings.append(LintFinding(severity, rule, place, message, fix))

    def add_problem(self, rule: str, problem: Problem, consequence: str) -> None:
        """A mistake of a file, and what its runtime does then."""
        fix = problem.hint or ""
        self.add(Severity.ERROR, rule, problem.place, f"{problem.message}: {consequence}", fix)

    def add_warning(self, problem: Problem) -> None:
        """What a runtime passes over in silence."""
        rule = "mirror-unknown-key" if problem.message.startswith("unknown key") else "mirror-passed-over"
        self.add(Severity.WARNING, rule, problem.place, problem.message, problem.hint or "")
