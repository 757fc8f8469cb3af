"""Print results and errors, as text or as JSON.

Colors are used only on a terminal, and never if NO_COLOR is set.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TextIO

from ostiary.conformance.findings import ConformanceFinding, Report, Result
from ostiary.core.text import printable
from ostiary.errors import OstiaryError


class Style(Enum):
    GOOD = "32"
    DOUBTFUL = "33"
    BAD = "1;31"
    FAINT = "2"


def paint(text: str, style: Style, stream: TextIO) -> str:
    """Return *text* in the color of *style*, if *stream* is a terminal with colors."""
    return f"\x1b[{style.value}m{text}\x1b[0m" if _has_colours(stream) else text


def _has_colours(stream: TextIO) -> bool:
    allowed = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return allowed and stream.isatty()


def print_json(value: object, *, stream: TextIO | None = None) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # JSON does not escape some terminal control characters, such as U+009B.
    print(
        "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n")),
        file=stream or sys.stdout,
    )


def _escaped(line: str) -> str:
    return "".join(char if printable(char) == char else json.dumps(char)[1:-1] for char in line)


def print_error(error: OstiaryError, *, as_json: bool = False) -> None:
    """Print *error* on stderr."""
    parts = {name: _at_home(text) if name == "where" else text for name, text in error.lines()}
    if as_json:
        print_json({"error": {"summary": error.summary, **parts}}, stream=sys.stderr)
        return
    print(f"{paint('ostiary:', Style.BAD, sys.stderr)} {printable(error.summary)}", file=sys.stderr)
    for row in rows(parts.items(), stream=sys.stderr):
        print(row, file=sys.stderr)


def print_note(text: str) -> None:
    """Print a note for the user on stderr, separate from the result."""
    print(f"{paint('ostiary:', Style.DOUBTFUL, sys.stderr)} {printable(text)}", file=sys.stderr)


@contextmanager
def log_as_notes() -> Iterator[None]:
    """Print warnings that are logged within this context on stderr.

    ``serve`` replaces this handler with its own log.
    """
    # Lazy import: not needed for --help or an invalid command line.
    import logging

    from ostiary.core.redaction import redact

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print_note(f"{record.levelname.lower()}: {redact(record.getMessage())}")

    notes = Notes(logging.WARNING)
    # `configure_logging` of the gateway replaces the handler of this name.
    notes.set_name("ostiary")
    root = logging.getLogger()
    root.addHandler(notes)
    try:
        yield
    finally:
        root.removeHandler(notes)


def rows(parts: Iterable[tuple[str, str]], *, stream: TextIO, width: int = 6) -> Iterable[str]:
    """Yield lines with names on the left and texts, possibly of several lines, on the right."""
    for name, text in parts:
        first, *rest = printable(text).splitlines() or [""]
        yield f"  {paint(f'{name:<{width}}', Style.FAINT, stream)} {first}".rstrip()
        yield from (f"  {'':<{width}} {line}" for line in rest)


def print_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table. Columns are as wide as their content; the last one is not padded."""
    cells = [tuple(map(one_line, line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    for number, line in enumerate((tuple(header), *cells)):
        text = "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        print(text if number else paint(text, Style.FAINT, sys.stdout))


def one_line(text: str) -> str:
    """Return *text* on one line without terminal control characters, or a dash if nothing is left."""
    return " ".join(printable(text).split()) or "-"


def _at_home(text: str) -> str:
    home = os.path.expanduser("~")
    return "~" + text[len(home) :] if home != "/" and text.startswith(home + os.sep) else text


# Conformance reports.

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
