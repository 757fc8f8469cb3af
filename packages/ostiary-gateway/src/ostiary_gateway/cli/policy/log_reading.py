"""Shared by the commands that read audit logs: the arguments, progress on a terminal, and skipped lines."""

from __future__ import annotations

import argparse
import gc
import re
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ostiary.cli.arguments import UsageError
from ostiary.cli.output import print_note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostiary_gateway.audit.log_files import Counts

LOGS_HELP = "the audit log: one or more files, plain or compressed with gzip; - for standard input"
_OBJECTS_PER_COLLECTION = 200_000
_DAYS = re.compile(r"([0-9]{1,5})d")


def add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", metavar="AUDIT_LOG", nargs="+", help=LOGS_HELP)


def add_since(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="TIME", help="only what came after it: 36h, 90d, or 2026-01-31T08:00:00Z")


def since_time(text: str | None) -> datetime | None:
    """Return the time that ``--since`` means. Raises `UsageError`."""
    if text is None:
        return None
    from ostiary.core.clock import SYSTEM_CLOCK
    from ostiary.core.duration import DurationError, parse_duration

    days = _DAYS.fullmatch(text)
    if days is not None:
        return SYSTEM_CLOCK.now() - timedelta(days=int(days[1]))
    try:
        return SYSTEM_CLOCK.now() - parse_duration(text)
    except (DurationError, OverflowError):
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError("--since is not a time", hint="as in: --since 36h, 90d, or 2026-01-31T08:00:00Z") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


@contextmanager
def counting() -> Iterator[Counts]:
    """Return the counts of a run. Progress is shown if stderr is a terminal."""
    from ostiary_gateway.audit.log_files import Counts

    counts = Counts()
    if sys.stderr.isatty():
        counts.on_progress = _show
    # The data of a log grows and has no cycles. With the default threshold of 700 objects the garbage collector would
    # take a quarter of the time.
    thresholds = gc.get_threshold()
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *thresholds[1:])
    try:
        yield counts
    finally:
        gc.set_threshold(*thresholds)
        if sys.stderr.isatty() and counts.lines:
            # Return to the start of the line, and erase it.
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _show(lines: int) -> None:
    print(f"\r{lines:,} events", end="", file=sys.stderr, flush=True)


def print_skipped(counts: Counts) -> None:
    """Print which lines could not be read, by number, because their content is unknown."""
    if counts.unreadable:
        places = ", ".join(counts.places)
        more = ", ..." if counts.unreadable > len(counts.places) else ""
        what = (
            "1 line is no audit event and was"
            if counts.unreadable == 1
            else (f"{counts.unreadable:,} lines are not audit events and were")
        )
        print_note(f"{what} skipped: {places}{more}")
