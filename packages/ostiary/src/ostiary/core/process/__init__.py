"""Runs processes: one command, to its end, within limits. Thread-safe; works on bytes.

    start -> serve its pipes until it ends -> read on until end of file, at most linger_seconds -> Outcome
                |  exceeded a limit, Ctrl-C, end_all()
                +-> SIGTERM -> at most grace_seconds -> SIGKILL -> Outcome, or the exception

On Windows, which has neither poll() for pipes nor signals, `threaded` gives the same guarantees with threads and a job
object.
"""

from __future__ import annotations

from ostiary.core.process.children import end_all
from ostiary.core.process.outcome import DEFAULT_LIMITS, Ending, Outcome, RunLimits, Stderr, Stdin, find_executable
from ostiary.core.process.start import ChildProcess, run, start_child

__all__ = [
    "DEFAULT_LIMITS",
    "ChildProcess",
    "Ending",
    "Outcome",
    "RunLimits",
    "Stderr",
    "Stdin",
    "end_all",
    "find_executable",
    "run",
    "start_child",
]
