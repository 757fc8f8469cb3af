"""kubectl of a chosen version, and what it printed in a form that can be compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster.client import Kubectl

# What differs between two runs against one server, whoever asks.
_DIFFERENT: Sequence[tuple[str, str]] = (
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UID"),
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\b", "TIME"),
    (r"\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
    (r"(\"?resourceVersion\"?: ?)\"\d+\"", r"\1VERSION"),
    (r"\beyJ[\w-]+\.[\w-]+\.[\w-]+\b", "JWT"),
    (r"^([EWI])\d{4} [\d:.]+ +\d+ ", r"\1 "),
    # How somebody proved who they are is the one thing that must differ.
    (r"^Extra: authentication\.kubernetes\.io/credential-id .*\n", ""),
    # Ages, with the spaces that fill up their column.
    (r"(?<=\s)(\d+[smhd]){1,2}( ago)?[ \t]*$", "AGE"),
    (r"(?<=\s)(\d+[smhd]){1,2}[ \t]+(?=\S)", "AGE "),
    (r"https://(localhost|127\.0\.0\.1):\d+", "SERVER"),
    # The gateway says by which number an operator finds out why; the API server has no such thing.
    (r" \(ostiary: decision [\w-]+\)", ""),
    # The width of a column depends on all of the above.
    (r"(?<=\S)[ \t]{2,}", "  "),
    (r"[ \t]+$", ""),
)


def comparable(text: str) -> str:
    for pattern, replacement in _DIFFERENT:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


@dataclass(frozen=True)
class Outcome:
    """What one command came to."""

    command: str
    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Step:
    """One command; *unordered* where Kubernetes itself prints the lines in any order."""

    arguments: tuple[str, ...]
    stdin: str | None = None
    unordered: bool = False


def step(*arguments: str, stdin: str | None = None, unordered: bool = False) -> Step:
    return Step(arguments, stdin, unordered)


class RealKubectl(Kubectl):
    """The kubectl at *program*; its discovery cache is its own."""

    def __init__(self, program: Path, kubeconfig: Path, **environment: str) -> None:
        super().__init__(kubeconfig, **environment)
        self.program = program

    def outcomes(self, steps: Sequence[Step]) -> list[Outcome]:
        """Run *steps* in order, whatever each comes to."""
        outcomes = []
        for each in steps:
            done = self(*each.arguments, stdin=each.stdin)
            stdout = comparable(done.stdout)
            if each.unordered:
                stdout = "\n".join(sorted(stdout.splitlines()))
            outcomes.append(Outcome(" ".join(each.arguments), done.returncode, stdout, comparable(done.stderr)))
        return outcomes

    def _command(self, args: tuple[str, ...]) -> list[str]:
        cache = f"{self.kubeconfig}-cache-{self.program.parent.name}"
        return [str(self.program), "--kubeconfig", str(self.kubeconfig), "--cache-dir", cache, *args]


def assert_same(direct: Sequence[Outcome], through_gateway: Sequence[Outcome]) -> None:
    """Fail with every command that came to something else through the gateway."""
    lines: list[str] = []
    for expected, outcome in zip(direct, through_gateway, strict=True):
        for field in ("code", "stdout", "stderr"):
            wanted, got = getattr(expected, field), getattr(outcome, field)
            if wanted != got:
                lines += [f"kubectl {expected.command}: {field}", f"  direct   {wanted!r}", f"  gateway  {got!r}"]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)
