"""Prints what an examination found, for a person or for a program."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten

from ostiary.cli.doctor.probe import Finding, Group
from ostiary.cli.doctor.remedies import remedy_lines
from ostiary.cli.output import paint, print_json
from ostiary.cli.report import STYLES
from ostiary.core.conformance import Result
from ostiary.core.text import printable

WORDS = {Result.PASS: "PASS", Result.WARN: "WARN", Result.FAIL: "FAIL", Result.SKIPPED: "NOT TESTED"}
WIDTH = max(map(len, WORDS.values()))
MOST_LINES = 8
LONGEST_LINE = 160


@dataclass(frozen=True, slots=True)
class Examined:
    """A whole run. `proxy` is empty if its kind is unknown."""

    url: str
    proxy: str
    requests: int
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        return not self.count(Result.FAIL)

    def count(self, result: Result) -> int:
        return sum(finding.result is result for finding in self.findings)


def print_examined(examined: Examined, *, as_json: bool) -> None:
    if as_json:
        print_json(_json(examined))
        return
    width = max(len(finding.name) for finding in examined.findings)
    for group in Group:
        findings = [finding for finding in examined.findings if finding.group is group]
        if findings:
            print(group.value)
        for finding in findings:
            for line in _rows(finding, examined.proxy, width):
                print(printable(line))
    counts = [f"{examined.count(result)} {word.lower()}" for result, word in WORDS.items() if examined.count(result)]
    name = f" ({examined.proxy})" if examined.proxy else ""
    print(f"\n{printable(examined.url)}{name}: {', '.join(counts)}, with {examined.requests} requests")


def _rows(finding: Finding, proxy: str, width: int) -> list[str]:
    word = paint(f"{WORDS[finding.result]:<{WIDTH}}", STYLES[finding.result], sys.stdout)
    first, *others = _seen(finding)
    indent = f"  {'':<{WIDTH}}  {'':<{width}}  "
    rows = [f"  {word}  {finding.name:<{width}}  {first}", *(indent + line for line in others)]
    if finding.result in (Result.FAIL, Result.WARN):
        label = "to shut it: "
        fix, *more = remedy_lines(finding.name, proxy, finding.names)
        rows += [indent + label + fix, *(indent + line for line in more)]
    return rows


def _seen(finding: Finding) -> list[str]:
    if finding.result is Result.PASS:
        return [finding.asks]
    lines = [shorten(line, LONGEST_LINE, placeholder=" ...") for line in finding.seen.splitlines()]
    rest = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], f"and {rest} more (--output json has all)"] if rest > 0 else lines


def _json(examined: Examined) -> dict[str, object]:
    return {
        "through": examined.url,
        "proxy": examined.proxy or None,
        "ok": examined.ok,
        "requests": examined.requests,
        "findings": [
            {
                "name": finding.name,
                "class": finding.group.name.lower(),
                "asks": finding.asks,
                "result": WORDS[finding.result].lower().replace(" ", "-"),
                "seen": finding.seen.splitlines(),
                "headers": list(finding.names),
                "fix": remedy_lines(finding.name, examined.proxy, finding.names)
                if finding.result in (Result.FAIL, Result.WARN)
                else [],
            }
            for finding in examined.findings
        ],
    }
