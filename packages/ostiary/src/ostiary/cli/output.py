"""Prints results and errors, for a person or for a program.

Colours appear on a terminal only, and never where NO_COLOR is set.
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
    """*text* in the colour of *style*, if *stream* is a terminal that shows colours."""
    return f"\x1b[{style.value}m{text}\x1b[0m" if _has_colours(stream) else text


def _has_colours(stream: TextIO) -> bool:
    allowed = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return allowed and stream.isatty()


def print_json(value: object, *, stream: TextIO | None = None) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # JSON itself leaves some characters as they are that steer a terminal, such as U+009B.
    print(
        "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n")),
        file=stream or sys.stdout,
    )


def _escaped(line: str) -> str:
    return "".join(char if printable(char) == char else json.dumps(char)[1:-1] for char in line)


def print_error(error: OstiaryError, *, as_json: bool = False) -> None:
    """Tell *error* on stderr."""
    parts = {name: _at_home(text) if name == "where" else text for name, text in error.lines()}
    if as_json:
        print_json({"error": {"summary": error.summary, **parts}}, stream=sys.stderr)
        return
    print(f"{paint('ostiary:', Style.BAD, sys.stderr)} {printable(error.summary)}", file=sys.stderr)
    for row in rows(parts.items(), stream=sys.stderr):
        print(row, file=sys.stderr)


def print_note(text: str) -> None:
    """Tell a person something beside the result, on stderr."""
    print(f"{paint('ostiary:', Style.DOUBTFUL, sys.stderr)} {printable(text)}", file=sys.stderr)


@contextmanager
def log_as_notes() -> Iterator[None]:
    """Tell a person the warnings that are logged meanwhile, on stderr; ``serve`` puts its own log in this place."""
    # Imported here: neither --help nor a mistake on the command line needs it.
    import logging

    from ostiary.core.redaction import redact

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print_note(f"{record.levelname.lower()}: {redact(record.getMessage())}")

    notes = Notes(logging.WARNING)
    # By this name `configure_logging` of the gateway knows what to replace.
    notes.set_name("ostiary")
    root = logging.getLogger()
    root.addHandler(notes)
    try:
        yield
    finally:
        root.removeHandler(notes)


def rows(parts: Iterable[tuple[str, str]], *, stream: TextIO, width: int = 6) -> Iterable[str]:
    """Names on the left, texts on the right, which may have several lines."""
    for name, text in parts:
        first, *rest = printable(text).splitlines() or [""]
        yield f"  {paint(f'{name:<{width}}', Style.FAINT, stream)} {first}".rstrip()
        yield from (f"  {'':<{width}} {line}" for line in rest)


def print_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they must be; the last one is not padded."""
    cells = [tuple(map(one_line, line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    for number, line in enumerate((tuple(header), *cells)):
        text = "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        print(text if number else paint(text, Style.FAINT, sys.stdout))


def one_line(text: str) -> str:
    """*text* without anything that could steer a terminal or look like another line; a dash if nothing is left."""
    return " ".join(printable(text).split()) or "-"


def _at_home(text: str) -> str:
    home = os.path.expanduser("~")
    return "~" + text[len(home) :] if home != "/" and text.startswith(home + os.sep) else text


# Prints what a conformance check found, for a person or for a program.

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
