"""The only starter of processes: one command, run to its end, within limits.

Called by the doors that run plugins, from worker threads, many at once. Bytes go in and bytes come out;
what they mean, and what to tell a person when it goes wrong, is the caller's business.

    start -> serve its pipes until it ends -> read on until end of file, at most linger_seconds -> Outcome
                |  passed a limit, Ctrl-C, end_all()
                +-> SIGTERM -> at most grace_seconds -> SIGKILL -> Outcome, or the exception

Every wait is one poll() over the pipes and a descriptor that tells of the child's end. `run` is for POSIX.
"""

from __future__ import annotations

import atexit
import math
import os
import select
import selectors
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import IO

from ostiary.core.clock import SYSTEM_CLOCK

# The real clock, always: the processes that are waited for do not live by a fake one.
_now = SYSTEM_CLOCK.monotonic

# The largest pipe that Linux gives to an ordinary user: one read of this size empties any pipe.
_WHOLE_PIPE = 1 << 20

# poll() counts milliseconds in an int, so "for ever" has to be said in instalments.
_LONGEST_WAIT = 3600.0

# SIGKILL works at once, or not at all: on what is not ours to signal, and on what is stuck in the kernel.
_KILL_SECONDS = 2.0


class Stdin(Enum):
    """What the child reads when it is not given bytes: ``/dev/null``, or what we read ourselves."""

    NOTHING = "nothing"
    INHERIT = "inherit"


_STDIN = {Stdin.NOTHING: subprocess.DEVNULL, Stdin.INHERIT: None}


class Stderr(Enum):
    """Where the child's messages go.

    TEE: to our own stderr as they come, and their tail into the `Outcome`. INHERIT: the child has our own
    stderr, which may be a terminal, and there is no tail. CAPTURE: the tail, and nowhere else.
    """

    TEE = "tee"
    INHERIT = "inherit"
    CAPTURE = "capture"


class Ending(Enum):
    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed out"
    TOO_MUCH_OUTPUT = "too much output"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much. `seconds` is None where there is no limit: a person is typing.

    `linger_seconds`: how long to read on after the child's end while a process it left behind holds its
    stdout. `grace_seconds`: from SIGTERM to SIGKILL. `notice_seconds`: from one `while_waiting` to the next.
    """

    seconds: float | None = 60.0
    stdout_bytes: int = 1 << 20
    stderr_tail_bytes: int = 8192
    linger_seconds: float = 0.25
    grace_seconds: float = 1.0
    notice_seconds: float = 10.0


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `exit_code` is negative when a signal ended the child, ours included."""

    exit_code: int
    # A plugin's stdout is a credential, and its stderr may quote one.
    stdout: bytes = field(repr=False)
    stderr_tail: bytes = field(repr=False)
    ending: Ending


def find_executable(command: str, *, path: str | None = None) -> str | None:
    """The file that *command* names, or None.

    A bare name is looked up in *path*, which is this program's own PATH unless given; the PATH that the
    child will see plays no part. A name with a separator is returned as it is, whether it exists or not:
    starting it tells more precisely what is wrong.
    """
    if os.path.dirname(command):
        return command
    places = os.environ.get("PATH", os.defpath) if path is None else path
    # A program that is given secrets is not picked up from whatever directory we happen to stand in:
    # like Go's LookPath, we look in absolute directories only. The second check is for Windows, where
    # `which` looks in the current directory unasked.
    absolute = os.pathsep.join(place for place in places.split(os.pathsep) if os.path.isabs(place))
    found = shutil.which(command, path=absolute)
    return found if found is not None and os.path.isabs(found) else None


def run(
    executable: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: Stdin | bytes = Stdin.NOTHING,
    stderr: Stderr = Stderr.TEE,
    limits: Limits = DEFAULT_LIMITS,
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

    *while_waiting* is called about every `Limits.notice_seconds` with the seconds waited so far. An
    exception from it, or Ctrl-C, ends the child before it propagates.
    """
    with ExitStack() as at_end:
        echo = _copy_of_our_stderr(at_end) if stderr is Stderr.TEE else None
        process = subprocess.Popen(
            list(argv),
            # Popen would search the PATH of *env* for a bare name.
            executable=executable if os.path.dirname(executable) else os.path.join(os.curdir, executable),
            env=dict(env),
            stdin=subprocess.PIPE if isinstance(stdin, bytes) else _STDIN[stdin],
            stdout=subprocess.PIPE,
            stderr=None if stderr is Stderr.INHERIT else subprocess.PIPE,
            start_new_session=own_group,
            bufsize=0,
        )
        child = _Child(process, own_group=own_group)
        at_end.callback(child.close)
        try:
            end_notice = _end_notice(child)
            at_end.callback(os.close, end_notice)
            service = _Service(child, end_notice, echo, stdin if isinstance(stdin, bytes) else b"", limits)
            return service.complete(while_waiting or (lambda seconds: None))
        except BaseException:
            # The service has ended the child already, unless Ctrl-C came before it or again and again.
            child.signal(signal.SIGKILL)
            raise


ChildProcess = subprocess.Popen[bytes]


def start_child(command: Sequence[str], *, keep_open: Sequence[int]) -> ChildProcess:
    """Start a program of our own beside this one, with these descriptors open in it. The caller minds it to its end."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=tuple(keep_open))


def end_all(grace_seconds: float = DEFAULT_LIMITS.grace_seconds) -> None:
    """End every process that is running now, as a limit would. Also done when the interpreter ends."""
    with _changed:
        children = tuple(_running)
        # Those at the terminal come later: the Ctrl-C that may be ending us has reached them too, and they
        # may be putting the terminal in order again.
        for own_group in (True, False):
            for child in children:
                if child.own_group is own_group:
                    child.unwanted = True
                    child.signal(signal.SIGTERM)
            _changed.wait_for(lambda: _running.isdisjoint(children), timeout=grace_seconds)
    for child in children:
        child.signal(signal.SIGKILL)


class _Pipe:
    """Our end of a pipe to the child, which never blocks; or of none, which is closed from the start."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._stream = stream
        if stream is not None:
            os.set_blocking(stream.fileno(), False)

    @property
    def is_open(self) -> bool:
        return self._stream is not None and not self._stream.closed

    def fileno(self) -> int:
        assert self._stream is not None
        return self._stream.fileno()

    def read(self) -> bytes:
        """All that is in the pipe now; closes it at its end."""
        try:
            chunk = os.read(self.fileno(), _WHOLE_PIPE)
        except BlockingIOError:
            return b""
        if not chunk:
            self.close()
        return chunk

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class _Child:
    """A started process, its pipes, and the right to signal it, which is lost when it is reaped."""

    def __init__(self, process: subprocess.Popen[bytes], *, own_group: bool) -> None:
        self.process = process
        self.own_group = own_group
        self.unwanted = False
        self.stdin, self.stdout, self.stderr = map(_Pipe, (process.stdin, process.stdout, process.stderr))
        self._exit_code: int | None = None
        self._reaping = threading.RLock()
        with _changed:
            _running.add(self)

    def signal(self, number: signal.Signals) -> None:
        # PermissionError: it has become another user's, as with sudo, and is out of our reach.
        with self._reaping, suppress(ProcessLookupError, PermissionError):
            # A process has its number until it is reaped, which `_hold_until_end` may have done; a group
            # has it while anybody is in it. After that, the number may be given to somebody else.
            if self._exit_code is None and self.own_group:
                os.killpg(self.process.pid, number)
            elif self.process.returncode is None:
                os.kill(self.process.pid, number)

    def reap(self) -> int | None:
        """What the process ended with; None if it runs on."""
        with self._reaping:
            self._exit_code = self.process.poll()
            return self._exit_code

    def close(self) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()
        self.reap()
        with _changed:
            _running.discard(self)
            _changed.notify_all()


_running: set[_Child] = set()
_changed = threading.Condition()


def _forget_the_parents_children() -> None:
    """A fork has our tables but not our processes: its exit must neither end them nor wait for a lock."""
    global _changed
    _changed = threading.Condition()
    _running.clear()


atexit.register(end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parents_children)


def _copy_of_our_stderr(at_end: ExitStack) -> int | None:
    """Taken before there are pipes: if descriptor 2 is closed, one of them may get that number."""
    try:
        copy = os.dup(2)
    except OSError:
        return None
    at_end.callback(os.close, copy)
    return copy


def _end_notice(child: _Child) -> int:
    """A descriptor that is readable once the child has ended; it does not reap the child."""
    # An older kernel, a sandbox, or another system may not know pidfd_open.
    with suppress(AttributeError, OSError):
        return os.pidfd_open(child.process.pid)
    with ExitStack() as on_failure:
        # No descriptor or no thread may be left to watch the child with.
        on_failure.callback(child.process.wait)
        on_failure.callback(child.signal, signal.SIGKILL)
        readable, held = os.pipe()
        on_failure.callback(os.close, readable)
        on_failure.callback(os.close, held)
        threading.Thread(target=_hold_until_end, args=(child.process, held), daemon=True).start()
        on_failure.pop_all()
    return readable


def _hold_until_end(process: subprocess.Popen[bytes], held: int) -> None:
    # ChildProcessError: a program that ignores SIGCHLD has no exit codes, only ends.
    with suppress(ChildProcessError):
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
    os.close(held)


class _Service:
    """Serves one child, from one thread, until it has ended."""

    def __init__(self, child: _Child, end_notice: int, echo: int | None, feed: bytes, limits: Limits) -> None:
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
        began = _now()
        limit = math.inf if self._limits.seconds is None else began + self._limits.seconds
        notice = began + self._limits.notice_seconds
        while not self._serve(min(limit, notice) - _now(), until=lambda: self._ended or self._overflowed):
            if limit <= notice:
                return Ending.TIMED_OUT
            while_waiting(_now() - began)
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
        self._child.signal(signal.SIGTERM)
        try:
            self._serve(
                self._limits.grace_seconds,
                until=lambda: self._ended and not (stdout.is_open or stderr.is_open or self._unsent),
            )
        finally:
            # For what is left of the group, even if its leader is gone. A second Ctrl-C comes here at once.
            self._child.signal(signal.SIGKILL)
            self._serve(_KILL_SECONDS, until=lambda: self._ended)

    def _serve(self, seconds: float, *, until: Callable[[], bool]) -> bool:
        """Serve for so many seconds, or *until* something is so; False when the time ran out first.

        There is one round even when no time is left: what has happened is seen, however late we come.
        """
        deadline = _now() + seconds
        while not until():
            left = deadline - _now()
            # Not epoll, which refuses files, and our stderr may be one.
            with selectors.PollSelector() as selector:
                for source, event, action in self._interests():
                    selector.register(source, event, action)
                for key, _ in selector.select(min(max(left, 0.0), _LONGEST_WAIT)):
                    key.data()
            if left <= 0:
                return until()
        return True

    def _interests(self) -> Iterator[tuple[int | _Pipe, int, Callable[[], None]]]:
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
