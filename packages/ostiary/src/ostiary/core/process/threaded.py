"""`start.run` where pipes cannot be polled (Windows): a thread per pipe, and one that waits for the process to end.

Only the process group differs between systems, so the tests of `run` exercise this module everywhere.

A process that a child leaves behind may keep its stdout open. Then the reading thread and the pipe stay until that
process writes again or ends: a pending read cannot be cancelled on Windows.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Protocol

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.process.children import note_end, note_start, starting
from ostiary.core.process.outcome import DEFAULT_LIMITS, STDIN, Ending, Outcome, RunLimits, Stderr, Stdin, as_path


class ProcessGroup(Protocol):
    """A started process and everything it started.

    Neither method raises when the process is gone or may not be signalled.
    """

    def ask_to_end(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None:
        """Release the group. Running processes go on."""


class PosixGroup:
    """The process group of a child, or with *own_group* False the process alone."""

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
    """The part of `core.platform.win32.WindowsApi` that job objects need."""

    def resume(self, process_handle: int) -> None: ...

    def new_job(self, process_handle: int) -> int: ...

    def end_job(self, job: int) -> None: ...

    def close(self, handle: int) -> None: ...


class JobGroup:
    """A job object. The process is started suspended, so that everything it starts is in the job as well.

    A process that leads a console group is terminated with Ctrl-Break, the only signal it can be sent. A process in our
    own group is not, because we would receive the signal as well.
    """

    def __init__(self, process: subprocess.Popen[bytes], own_group: bool, jobs: Jobs) -> None:
        self._process, self._own_group, self._jobs = process, own_group, jobs
        self._job: int | None = None
        if own_group:
            handle = int(getattr(process, "_handle"))  # noqa: B009  # only there on Windows
            # Inside a job that forbids nested jobs only the process itself can be ended.
            with suppress(OSError):
                self._job = jobs.new_job(handle)
            jobs.resume(handle)

    def ask_to_end(self) -> None:
        if self._own_group and self._process.poll() is None:
            # SystemError: raised by Python 3.11 if there is no console.
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


GroupOf = Callable[[subprocess.Popen[bytes], bool], ProcessGroup]

_now = SYSTEM_CLOCK.monotonic
_CHUNK = 65536
# On Windows, waiting for a condition does not notice Ctrl-C until the wait is over.
_LONGEST_WAIT = 0.2
_KILL_SECONDS = 2.0
# Suspended until `JobGroup` has added it to a job: a launcher starts another process immediately.
_OWN_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) | (0x4 if os.name == "nt" else 0)


def job_group(process: subprocess.Popen[bytes], own_group: bool) -> ProcessGroup:
    """Return the process group on Windows."""
    from ostiary.core.platform.win32 import windows

    return JobGroup(process, own_group, windows())


def run_threaded(
    executable: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: Stdin | bytes = Stdin.NOTHING,
    stderr: Stderr = Stderr.TEE,
    limits: RunLimits = DEFAULT_LIMITS,
    own_group: bool = True,
    while_waiting: Callable[[float], None] | None = None,
    group_of: GroupOf = job_group,
) -> Outcome:
    """Like `start.run`, with the process groups that *group_of* makes."""
    with starting():
        process = subprocess.Popen(
            list(argv),
            executable=as_path(executable),
            env=dict(env),
            stdin=subprocess.PIPE if isinstance(stdin, bytes) else STDIN[stdin],
            stdout=subprocess.PIPE,
            stderr=None if stderr is Stderr.INHERIT else subprocess.PIPE,
            start_new_session=own_group,
            creationflags=_OWN_GROUP if own_group else 0,
            bufsize=0,
        )
        try:
            child = _ThreadedChild(process, group_of(process, own_group), own_group=own_group, limits=limits)
        except BaseException:
            process.kill()
            raise
    try:
        child.begin(stdin if isinstance(stdin, bytes) else None, echo=2 if stderr is Stderr.TEE else None)
        return child.complete(while_waiting or (lambda seconds: None))
    finally:
        child.close()


class _ThreadedChild:
    """A process, the threads of its pipes, and what they have read so far, guarded by `_changed`."""

    def __init__(
        self, process: subprocess.Popen[bytes], group: ProcessGroup, *, own_group: bool, limits: RunLimits
    ) -> None:
        self.own_group = own_group
        self.unwanted = False
        self._process = process
        self._group = group
        self._limits = limits
        self._changed = threading.Condition()
        self._over = False
        self._ended = False
        self._killed = False
        self._overflowed = False
        self._stdout = bytearray()
        self._stdout_open = True
        self._stderr_tail = bytearray()
        self._stderr_open = process.stderr is not None
        note_start(self)

    def begin(self, feed: bytes | None, *, echo: int | None) -> None:
        assert self._process.stdout is not None
        self._in_thread(self._wait_for_end)
        self._in_thread(self._read_stdout, self._process.stdout)
        if self._process.stderr is not None:
            self._in_thread(self._read_stderr, self._process.stderr, echo)
        if feed is not None:
            self._in_thread(self._feed, self._process.stdin, feed)

    def complete(self, while_waiting: Callable[[float], None]) -> Outcome:
        try:
            passed = self._live(while_waiting)
            if passed is None:
                # Also wait for stderr: its thread may not have run yet when the child has ended.
                self._wait(self._is_read, self._limits.linger_seconds)
                passed = Ending.TOO_MUCH_OUTPUT if self._overflowed else None
            if passed or self.unwanted:
                self._end()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not self.own_group:
                # Ctrl-C has reached the child too.
                self._wait(lambda: self._ended, self._limits.grace_seconds)
            self._end()
            raise
        with self._changed:
            code = self._exit_code()
            ending = passed or (Ending.SIGNALLED if code < 0 else Ending.EXITED)
            return Outcome(code, bytes(self._stdout), bytes(self._stderr_tail), ending)

    def end(self) -> None:
        self._group.ask_to_end()

    def kill(self) -> None:
        self._killed = True
        self._group.kill()

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._group.close()
        note_end(self)

    # --- waiting, in the caller's thread ---

    def _live(self, while_waiting: Callable[[float], None]) -> Ending | None:
        """Wait until the child ends or exceeds a limit. Returns the limit."""
        start = _now()
        limit = math.inf if self._limits.seconds is None else start + self._limits.seconds
        notice = start + self._limits.notice_seconds
        while not self._wait(lambda: self._ended or self._overflowed, min(limit, notice) - _now()):
            if limit <= notice:
                return Ending.TIMED_OUT
            while_waiting(_now() - start)
            notice = _now() + self._limits.notice_seconds
        return Ending.TOO_MUCH_OUTPUT if self._overflowed else None

    def _end(self) -> None:
        self.end()
        try:
            self._wait(lambda: self._ended and not (self._stdout_open or self._stderr_open), self._limits.grace_seconds)
        finally:
            self.kill()
            self._wait(lambda: self._ended, _KILL_SECONDS)

    def _wait(self, until: Callable[[], bool], seconds: float) -> bool:
        deadline = _now() + seconds
        with self._changed:
            while not until():
                remaining = deadline - _now()
                if remaining <= 0:
                    return False
                self._changed.wait(min(remaining, _LONGEST_WAIT))
        return True

    def _is_read(self) -> bool:
        return self._overflowed or not (self._stdout_open or self._stderr_open)

    def _exit_code(self) -> int:
        code = self._process.returncode
        # Windows has no exit by signal: a process that we ended looks like a normal exit.
        if code is None or (self._killed and code > 0):
            return -int(signal.SIGTERM)
        return int(code)

    # --- threads ---

    def _in_thread(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, name="ostiary-process", daemon=True).start()

    def _wait_for_end(self) -> None:
        self._process.wait()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read_stdout(self, pipe: IO[bytes]) -> None:
        with pipe:
            while chunk := self._read(pipe):
                with self._changed:
                    room = self._limits.stdout_bytes - len(self._stdout)
                    self._stdout += chunk[:room]
                    if len(chunk) > room:
                        self._overflowed = True
                        self._changed.notify_all()
                    if self._over or self._overflowed:
                        break
        with self._changed:
            self._stdout_open = False
            self._changed.notify_all()

    def _read_stderr(self, pipe: IO[bytes], echo: int | None) -> None:
        with pipe:
            while chunk := self._read(pipe):
                with self._changed:
                    if self._over:
                        break
                    self._stderr_tail += chunk
                    del self._stderr_tail[: max(0, len(self._stderr_tail) - self._limits.stderr_tail_bytes)]
                if echo is not None:
                    # A slow reader of our stderr slows the child, as if it wrote there itself.
                    with suppress(OSError):
                        os.write(echo, chunk)
        with self._changed:
            self._stderr_open = False
            self._changed.notify_all()

    def _read(self, pipe: IO[bytes]) -> bytes:
        try:
            return os.read(pipe.fileno(), _CHUNK)
        except OSError:
            return b""

    def _feed(self, pipe: IO[bytes], feed: bytes) -> None:
        # The child need not read its stdin.
        with suppress(OSError), pipe:
            unfed = memoryview(feed)
            while unfed:
                unfed = unfed[os.write(pipe.fileno(), unfed) :]
