"""The running child processes: their pipes, signalling them, and ending all of them when the interpreter exits."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Protocol

from ostiary.core.process.outcome import DEFAULT_LIMITS

# The largest pipe of an unprivileged user on Linux: one read of this size empties any pipe.
_WHOLE_PIPE = 1 << 20


class Pipe:
    """Our non-blocking end of a pipe to the child. Without a stream it is closed from the start."""

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
        """Read everything that is in the pipe; closes it at end of file."""
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


class RunningChild:
    """A started process and its pipes. It can be signalled only until it is reaped."""

    def __init__(self, process: subprocess.Popen[bytes], *, own_group: bool) -> None:
        self.process = process
        self.own_group = own_group
        self.unwanted = False
        self.stdin, self.stdout, self.stderr = map(Pipe, (process.stdin, process.stdout, process.stderr))
        self._exit_code: int | None = None
        self._reaping = threading.RLock()
        note_start(self)

    def signal(self, number: signal.Signals) -> None:
        # PermissionError: the process changed its user, as with sudo, and may not be signalled.
        with self._reaping, suppress(ProcessLookupError, PermissionError):
            # A process keeps its id until it is reaped, which `_hold_until_end` may have done; a group keeps it while
            # it has members. After that, the id may be reused.
            if self._exit_code is None and self.own_group:
                os.killpg(self.process.pid, number)
            elif self.process.returncode is None:
                os.kill(self.process.pid, number)

    def end(self) -> None:
        """Request termination of the process (SIGTERM)."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def reap(self) -> int | None:
        """Return the exit code; None if the process is still running."""
        with self._reaping:
            self._exit_code = self.process.poll()
            return self._exit_code

    def close(self) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()
        self.reap()
        note_end(self)


class Endable(Protocol):
    """A running process, on any platform.

    `unwanted` is set while it is being ended for another reason than its own limit.
    """

    own_group: bool
    unwanted: bool

    def end(self) -> None: ...

    def kill(self) -> None: ...


_running: set[Endable] = set()
_starting = 0
_changed = threading.Condition()


@contextmanager
def starting() -> Iterator[None]:
    """Make `end_all` wait until the process that is started in this context is registered, or has failed to start.

    Otherwise a process that a daemon thread starts while the interpreter exits would be missed and run on.
    """
    global _starting
    with _changed:
        _starting += 1
    try:
        yield
    finally:
        with _changed:
            _starting -= 1
            _changed.notify_all()


def note_start(child: Endable) -> None:
    with _changed:
        _running.add(child)


def note_end(child: Endable) -> None:
    with _changed:
        _running.discard(child)
        _changed.notify_all()


def end_all(grace_seconds: float = DEFAULT_LIMITS.grace_seconds) -> None:
    """End every running process like a limit would. Also called when the interpreter exits."""
    with _changed:
        _changed.wait_for(lambda: not _starting, timeout=grace_seconds)
        children = tuple(_running)
        # Processes in our own group come second: the Ctrl-C that may be ending us has reached them too, and they may be
        # restoring the terminal.
        for own_group in (True, False):
            for child in children:
                if child.own_group is own_group:
                    child.unwanted = True
                    child.end()
            _changed.wait_for(lambda: _running.isdisjoint(children), timeout=grace_seconds)
    for child in children:
        child.kill()


def _forget_the_parents_children() -> None:
    """Reset after a fork: the child has our tables but not our processes.

    Its exit must neither end them nor wait for a lock.
    """
    global _changed, _starting
    _changed = threading.Condition()
    _starting = 0
    _running.clear()


atexit.register(end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parents_children)


def end_notice(child: RunningChild) -> int:
    """Return a descriptor that becomes readable when the child has ended. It does not reap the child."""
    # An older kernel, a sandbox, or another system may not support pidfd_open.
    with suppress(AttributeError, OSError):
        return os.pidfd_open(child.process.pid)
    with ExitStack() as on_failure:
        # There may be no descriptor or thread left to watch the child with.
        on_failure.callback(child.process.wait)
        on_failure.callback(child.kill)
        readable, write_end = os.pipe()
        on_failure.callback(os.close, readable)
        on_failure.callback(os.close, write_end)
        threading.Thread(target=_hold_until_end, args=(child.process, write_end), daemon=True).start()
        on_failure.pop_all()
    return readable


def _hold_until_end(process: subprocess.Popen[bytes], held: int) -> None:
    # ChildProcessError: a program that ignores SIGCHLD gets no exit codes.
    with suppress(ChildProcessError):
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
    os.close(held)
