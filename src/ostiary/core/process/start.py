"""Starts processes: one command that is run to its end within limits, or a program of our own beside this one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from ostiary.core.process.children import RunningChild, end_notice, starting
from ostiary.core.process.executable import as_path
from ostiary.core.process.outcome import DEFAULT_LIMITS, STDIN, Outcome, RunLimits, Stderr, Stdin
from ostiary.core.process.service import Service


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
