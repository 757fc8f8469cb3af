"""Starts processes: one command that is run to its end within limits, or a program of our own beside this one."""

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

# Serves the pipes of one child until it has ended or passed a limit.
#
# Called by `start.run`. Every wait is one poll() over the pipes and a descriptor that tells of the child's end.

# The real clock, always: the processes that are waited for do not live by a fake one.
_now = SYSTEM_CLOCK.monotonic

# poll() counts milliseconds in an int, so "for ever" has to be said in instalments.
_LONGEST_WAIT = 3600.0

# SIGKILL works at once, or not at all: on what is not ours to signal, and on what is stuck in the kernel.
_KILL_SECONDS = 2.0


class Service:
    """Serves one child, from one thread, until it has ended."""

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
                    # The Ctrl-C has reached the child too, which may be putting the terminal in order again.
                    self._serve(self._limits.grace_seconds, until=lambda: self._ended)
            finally:
                self._end()
            raise
        code = self._child.reap()
        if code is None:
            # There is no use in waiting longer for what SIGKILL could not end.
            code = -signal.SIGKILL
        ending = passed or (Ending.SIGNALLED if code < 0 else Ending.EXITED)
        return Outcome(code, bytes(self._stdout), bytes(self._stderr_tail), ending)

    def _live(self, while_waiting: Callable[[float], None]) -> Ending | None:
        """Serve the child until it ends or passes a limit; says which limit."""
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
        """Take what is left after the child's end.

        All that it wrote itself is in the pipes by now. Only processes it left behind can make us wait, and
        only on stdout: what they have to say on stderr adds nothing to the answer.
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
            # For what is left of the group, even if its leader is gone. A second Ctrl-C comes here at once.
            self._child.kill()
            self._serve(_KILL_SECONDS, until=lambda: self._ended)

    def _serve(self, seconds: float, *, until: Callable[[], bool]) -> bool:
        """Serve for so many seconds, or *until* something is so; False when the time ran out first.

        There is one round even when no time is left: what has happened is seen, however late we come.
        """
        deadline = _now() + seconds
        while not until():
            remaining = deadline - _now()
            # Not epoll, which refuses files, and our stderr may be one.
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
            # No more is read meanwhile: a slow reader of our stderr slows the child, as if it were its own.
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
            # It need not read what it is told.
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
            # So little never blocks when poll() has promised that there is room.
            del self._unsent[: os.write(self._echo, self._unsent[: select.PIPE_BUF])]
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads our stderr any more. The child's tail is kept all the same.
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

    *executable* is a file and is never searched for: see `find_executable`. When it cannot be started the
    OSError of the system comes through unchanged, and a ValueError when *argv* or *env* hold what no
    process can be given, such as a NUL.

    With *own_group* the child leads a session of its own, and a limit ends everything it started there.
    Without it the child stays in our group, where it can read the terminal and gets the terminal's Ctrl-C;
    a limit then ends the child alone. A process that a child leaves behind when it ends by itself is left
    alone too, but finds nobody reading its stdout.

    *while_waiting* is called about every `RunLimits.notice_seconds` with the seconds waited so far. An
    exception from it, or Ctrl-C, ends the child before it propagates.
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
            # The service has ended the child already, unless Ctrl-C came before it or again and again.
            child.kill()
            raise


class _StartedProcess(subprocess.Popen[bytes]):
    """A process that does not run on when Ctrl-C comes while it is being started.

    Popen waits until the program has been loaded, and forgets about it if that wait is interrupted. A Ctrl-C that comes
    between the fork and the moment when its number is stored is put off until then: nobody could end it otherwise.
    """

    def __init__(self, argv: Sequence[str], **options: Any) -> None:
        try:
            with self._interrupts_put_off():
                super().__init__(argv, **options)
        except KeyboardInterrupt:
            # Not reaped by Popen, so the number is still the child's.
            if self._is_started:
                self.kill()
            raise

    @property
    def _is_started(self) -> bool:
        return getattr(self, "pid", None) is not None

    @contextmanager
    def _interrupts_put_off(self) -> Iterator[None]:
        """By a handler and not by a mask, which the child would inherit."""
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
    """Start a program of our own beside this one, with these descriptors open in it. The caller minds it to its end."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=tuple(keep_open))


def start_detached(command: Sequence[str], *, keep_open: Sequence[int], without: Sequence[str] = ()) -> None:
    """Start a program of our own that outlives this one: in a session of its own, and with no terminal.

    Its environment is ours *without* these variables.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: text for name, text in os.environ.items() if name not in without},
        pass_fds=tuple(keep_open),
        start_new_session=True,
        # The folder that somebody works in must not be held by it.
        cwd="/",
    )
    # Nobody minds it: it ends by itself, and whoever adopts it reaps it.
    process.returncode = 0


def _copy_of_our_stderr(at_end: ExitStack) -> int | None:
    """Taken before there are pipes: if descriptor 2 is closed, one of them may get that number."""
    try:
        copy = os.dup(2)
    except OSError:
        return None
    at_end.callback(os.close, copy)
    return copy
