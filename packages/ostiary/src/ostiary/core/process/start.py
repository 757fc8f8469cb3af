"""Starts processes: a command that is run to its end within limits, or a program of ours that runs beside this one."""

from __future__ import annotations

import math
import os
import select
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.process.children import Pipe, RunningChild, end_notice, starting
from ostiary.core.process.outcome import DEFAULT_LIMITS, STDIN, Ending, Outcome, RunLimits, Stderr, Stdin, as_path

# Serving a child: every wait is one poll() over its pipes and a descriptor that signals its exit.

# Always the real clock: child processes do not follow a fake one.
_now = SYSTEM_CLOCK.monotonic

# poll() counts milliseconds in an int, so an unlimited wait is split.
_LONGEST_WAIT = 3600.0

# SIGKILL works immediately or not at all: for a process we may not signal, or one that is stuck in the kernel.
_KILL_SECONDS = 2.0


class Service:
    """Serves the pipes of one child, from one thread, until it has ended or exceeded a limit."""

    def __init__(self, child: RunningChild, end_notice: int, echo: int | None, feed: bytes, limits: RunLimits) -> None:
        self._child = child
        self._end_notice = end_notice
        self._echo = echo
        self._limits = limits
        self._ended = False
        self._overflowed = False
        self._unfed = memoryview(feed)
        self._unsent = bytearray()
        self._stdout = bytearray()
        self._stderr_tail = bytearray()

    def complete(self, while_waiting: Callable[[float], None]) -> Outcome:
        try:
            passed = self._live(while_waiting) or self._linger()
            if passed or self._child.unwanted:
                self._end()
        except BaseException as error:
            try:
                if isinstance(error, KeyboardInterrupt) and not self._child.own_group:
                    # Ctrl-C has reached the child too, which may be restoring the terminal.
                    self._serve(self._limits.grace_seconds, until=lambda: self._ended)
            finally:
                self._end()
            raise
        code = self._child.reap()
        if code is None:
            # Waiting longer does not help if SIGKILL could not end it.
            code = -signal.SIGKILL
        ending = passed or (Ending.SIGNALLED if code < 0 else Ending.EXITED)
        return Outcome(code, bytes(self._stdout), bytes(self._stderr_tail), ending)

    def _live(self, while_waiting: Callable[[float], None]) -> Ending | None:
        """Serve the child until it ends or exceeds a limit. Returns the limit."""
        start = _now()
        limit = math.inf if self._limits.seconds is None else start + self._limits.seconds
        notice = start + self._limits.notice_seconds
        while not self._serve(min(limit, notice) - _now(), until=lambda: self._ended or self._overflowed):
            if limit <= notice:
                return Ending.TIMED_OUT
            while_waiting(_now() - start)
            notice = _now() + self._limits.notice_seconds
        return Ending.TOO_MUCH_OUTPUT if self._overflowed else None

    def _linger(self) -> Ending | None:
        """Read what is left after the child's end.

        Everything that it wrote itself is in the pipes already. Only processes it left behind can make this wait, and
        only on stdout: their stderr adds nothing to the result.
        """
        stdout, stderr = self._child.stdout, self._child.stderr
        self._serve(self._limits.linger_seconds, until=lambda: self._overflowed or not stdout.is_open)
        if stderr.is_open:
            self._read_stderr()
        self._serve(self._limits.linger_seconds, until=lambda: not self._unsent)
        return Ending.TOO_MUCH_OUTPUT if self._overflowed else None

    def _end(self) -> None:
        stdout, stderr = self._child.stdout, self._child.stderr
        self._child.end()
        try:
            self._serve(
                self._limits.grace_seconds,
                until=lambda: self._ended and not (stdout.is_open or stderr.is_open or self._unsent),
            )
        finally:
            # Also kills the rest of the group if its leader is gone. A second Ctrl-C gets here immediately.
            self._child.kill()
            self._serve(_KILL_SECONDS, until=lambda: self._ended)

    def _serve(self, seconds: float, *, until: Callable[[], bool]) -> bool:
        """Serve for *seconds* or *until* the condition holds. Returns False if the time ran out first.

        Runs at least one round even when no time is left, so that events that already happened are seen.
        """
        deadline = _now() + seconds
        while not until():
            remaining = deadline - _now()
            # Not epoll, which rejects files: our stderr may be a file.
            with selectors.PollSelector() as selector:
                for source, event, action in self._interests():
                    selector.register(source, event, action)
                for key, _ in selector.select(min(max(remaining, 0.0), _LONGEST_WAIT)):
                    key.data()
            if remaining <= 0:
                return until()
        return True

    def _interests(self) -> Iterator[tuple[int | Pipe, int, Callable[[], None]]]:
        child = self._child
        if not self._ended:
            yield self._end_notice, selectors.EVENT_READ, self._note_end
        if child.stdin.is_open:
            yield child.stdin, selectors.EVENT_WRITE, self._feed_stdin
        if child.stdout.is_open:
            yield child.stdout, selectors.EVENT_READ, self._read_stdout
        if self._unsent and self._echo is not None:
            # Reading pauses meanwhile: a slow reader of our stderr slows the child, as if it wrote there itself.
            yield self._echo, selectors.EVENT_WRITE, self._pass_on
        elif child.stderr.is_open:
            yield child.stderr, selectors.EVENT_READ, self._read_stderr

    def _note_end(self) -> None:
        self._ended = True

    def _feed_stdin(self) -> None:
        try:
            self._unfed = self._unfed[os.write(self._child.stdin.fileno(), self._unfed) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            # The child need not read its stdin.
            self._unfed = self._unfed[:0]
        if not self._unfed:
            self._child.stdin.close()

    def _read_stdout(self) -> None:
        chunk = self._child.stdout.read()
        room = self._limits.stdout_bytes - len(self._stdout)
        self._stdout += chunk[:room]
        self._overflowed = self._overflowed or len(chunk) > room

    def _read_stderr(self) -> None:
        chunk = self._child.stderr.read()
        self._stderr_tail += chunk
        del self._stderr_tail[: max(0, len(self._stderr_tail) - self._limits.stderr_tail_bytes)]
        if self._echo is not None:
            self._unsent += chunk

    def _pass_on(self) -> None:
        assert self._echo is not None
        try:
            # A write of at most PIPE_BUF never blocks when poll() has reported room.
            del self._unsent[: os.write(self._echo, self._unsent[: select.PIPE_BUF])]
        except BlockingIOError:
            return
        except OSError:
            # Our stderr has no reader any more. The tail is still captured.
            self._echo = None
            self._unsent.clear()


def run(
    executable: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: Stdin | bytes = Stdin.NOTHING,
    stderr: Stderr = Stderr.TEE,
    limits: RunLimits = DEFAULT_LIMITS,
    own_group: bool = True,
    while_waiting: Callable[[float], None] | None = None,
) -> Outcome:
    """Run *executable* with exactly *argv* (its own name comes first) and exactly *env*, and wait for it.

    *executable* is a file and is never searched for: see `find_executable`. If it cannot be started, the OSError of the
    system propagates unchanged; a ValueError if *argv* or *env* hold what cannot be passed to a process, such as a NUL.

    With *own_group* the child leads its own session, and a limit ends everything it started there. Without it the child
    stays in our process group, where it can read the terminal and gets the terminal's Ctrl-C; a limit then ends the
    child alone. A process that a child leaves behind when it exits by itself is not ended either, but its stdout has no
    reader.

    *while_waiting* is called about every `RunLimits.notice_seconds` with the seconds waited so far. If it raises, or on
    Ctrl-C, the child is ended before the exception propagates.
    """
    if os.name == "nt":
        from ostiary.core.process.threaded import run_threaded

        return run_threaded(
            executable,
            argv,
            env=env,
            stdin=stdin,
            stderr=stderr,
            limits=limits,
            own_group=own_group,
            while_waiting=while_waiting,
        )
    with ExitStack() as at_end:
        echo = _copy_of_our_stderr(at_end) if stderr is Stderr.TEE else None
        with starting():
            process = _StartedProcess(
                list(argv),
                executable=as_path(executable),
                env=dict(env),
                stdin=subprocess.PIPE if isinstance(stdin, bytes) else STDIN[stdin],
                stdout=subprocess.PIPE,
                stderr=None if stderr is Stderr.INHERIT else subprocess.PIPE,
                start_new_session=own_group,
                bufsize=0,
            )
            try:
                child = RunningChild(process, own_group=own_group)
            except BaseException:
                process.kill()
                raise
        at_end.callback(child.close)
        try:
            notice = end_notice(child)
            at_end.callback(os.close, notice)
            service = Service(child, notice, echo, stdin if isinstance(stdin, bytes) else b"", limits)
            return service.complete(while_waiting or (lambda seconds: None))
        except BaseException:
            # The service has ended the child already, unless Ctrl-C came before it or repeatedly.
            child.kill()
            raise


class _StartedProcess(subprocess.Popen[bytes]):
    """A process that is ended when Ctrl-C comes while it is being started.

    Popen waits until the program has been loaded, and loses track of it if that wait is interrupted. A Ctrl-C between
    the fork and the moment when the process id is stored is deferred until then, because the process could not be ended
    otherwise.
    """

    def __init__(self, argv: Sequence[str], **options: Any) -> None:
        try:
            with self._interrupts_put_off():
                super().__init__(argv, **options)
        except KeyboardInterrupt:
            # Popen has not reaped it, so the process id is still the child's.
            if self._is_started:
                self.kill()
            raise

    @property
    def _is_started(self) -> bool:
        return getattr(self, "pid", None) is not None

    @contextmanager
    def _interrupts_put_off(self) -> Iterator[None]:
        """Defer Ctrl-C with a handler instead of a signal mask, which the child would inherit."""
        before = signal.getsignal(signal.SIGINT)
        if not callable(before) or threading.current_thread() is not threading.main_thread():
            yield
            return
        arrived: list[tuple[int, FrameType | None]] = []

        def interrupt_once_started(number: int, frame: FrameType | None) -> None:
            if self._is_started:
                before(number, frame)
            else:
                arrived.append((number, frame))

        signal.signal(signal.SIGINT, interrupt_once_started)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            if arrived:
                before(*arrived[0])


ChildProcess = subprocess.Popen[bytes]


def start_child(command: Sequence[str], *, keep_open: Sequence[int]) -> ChildProcess:
    """Start a program of ours beside this one, with these descriptors open in it. The caller supervises it."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=tuple(keep_open))


def start_detached(command: Sequence[str], *, keep_open: Sequence[int], without: Sequence[str] = ()) -> None:
    """Start a program of ours that outlives this one, in its own session and without a terminal.

    It gets our environment *without* these variables.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: text for name, text in os.environ.items() if name not in without},
        pass_fds=tuple(keep_open),
        start_new_session=True,
        # It must not keep the user's working directory busy.
        cwd="/",
    )
    # It is not supervised: it ends by itself and is reaped by its new parent.
    process.returncode = 0


def _copy_of_our_stderr(at_end: ExitStack) -> int | None:
    """Duplicate stderr before pipes are created: if descriptor 2 is closed, a pipe may get that number."""
    try:
        copy = os.dup(2)
    except OSError:
        return None
    at_end.callback(os.close, copy)
    return copy
