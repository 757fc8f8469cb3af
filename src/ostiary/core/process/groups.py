"""A started process with all that it started: asked to end, or ended. One branch for each system.

Called by `threaded`, which is told to ask first and to kill after a grace period.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Protocol


class ProcessGroup(Protocol):
    """Neither method raises when the process is gone, or out of our reach."""

    def ask_to_end(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None:
        """Let go of it. What still runs goes on."""


class PosixGroup:
    """A group of its own, or with *own_group* False the process alone."""

    def __init__(self, process: subprocess.Popen[bytes], own_group: bool) -> None:
        self._process, self._own_group = process, own_group

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def close(self) -> None: ...

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._own_group:
                os.killpg(self._process.pid, number)
            elif self._process.poll() is None:
                os.kill(self._process.pid, number)


class Jobs(Protocol):
    """What is needed of `core.platform.win32.WindowsApi`."""

    def resume(self, process_handle: int) -> None: ...

    def new_job(self, process_handle: int) -> int: ...

    def end_job(self, job: int) -> None: ...

    def close(self, handle: int) -> None: ...


class JobGroup:
    """A job object. The process was started suspended, so that all it starts is in the job as well.

    A process that leads a group of the console is asked with Ctrl-Break, which is the only thing that can be asked of
    it; one that shares our group is not, because we would be asked as well.
    """

    def __init__(self, process: subprocess.Popen[bytes], own_group: bool, jobs: Jobs) -> None:
        self._process, self._own_group, self._jobs = process, own_group, jobs
        self._job: int | None = None
        if own_group:
            handle = int(getattr(process, "_handle"))  # noqa: B009  # only there on Windows
            # Inside a job that forbids nested ones there is the process alone.
            with suppress(OSError):
                self._job = jobs.new_job(handle)
            jobs.resume(handle)

    def ask_to_end(self) -> None:
        if self._own_group and self._process.poll() is None:
            # SystemError: what Python 3.11 raises where there is no console.
            with suppress(OSError, SystemError):
                self._process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))

    def kill(self) -> None:
        with suppress(OSError):
            if self._job is not None:
                self._jobs.end_job(self._job)
            elif self._process.poll() is None:
                self._process.kill()

    def close(self) -> None:
        if self._job is not None:
            self._jobs.close(self._job)
            self._job = None
