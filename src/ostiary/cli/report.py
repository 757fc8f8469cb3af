"""Prints what a conformance check found, for a person or for a program."""

from __future__ import annotations

import os
import sys

from ostiary.cli.output import Style, paint, print_json
from ostiary.core.conformance import ConformanceFinding, Report, Result

STYLES = {
    Result.PASS: Style.GOOD,
    Result.WARN: Style.DOUBTFUL,
    Result.FAIL: Style.BAD,
    Result.SKIPPED: Style.FAINT,
}


def print_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(_report_json(report))
        return
    width = max(len(finding.rule) for finding in report.findings)
    for finding in report.findings:
        for row in _finding_rows(finding, width):
            print(row)
    if report.stderr:
        print("\nit said on stderr:")
        for line in report.stderr.splitlines():
            print(f"  {line}")
    counts = [f"{report.count(result)} {result.value}" for result in Result if report.count(result)]
    name = os.path.basename(report.command)
    print(f"\n{name}: {', '.join(counts)}, in {report.runs} {'run' if report.runs == 1 else 'runs'}")


def _report_json(report: Report) -> dict[str, object]:
    findings = [
        {
            "rule": finding.rule,
            "asks": finding.asks,
            "result": finding.result.value,
            "seen": finding.seen,
            "fix": finding.fix,
        }
        for finding in report.findings
    ]
    fields = {"command": report.command, "ok": report.ok, "runs": report.runs, "findings": findings}
    return {**fields, "stderr": report.stderr} if report.stderr else fields


def _finding_rows(finding: ConformanceFinding, width: int) -> list[str]:
    result = paint(f"{finding.result.value.upper():<7}", STYLES[finding.result], sys.stdout)
    row = f"{result} {finding.rule:<{width}}  {finding.seen or finding.asks}"
    return [row, f"{'':<7} {'':<{width}}  fix: {finding.fix}"] if finding.fix else [row]
