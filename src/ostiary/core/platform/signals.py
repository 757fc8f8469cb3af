"""What happens when a signal comes at a bad moment.

`block_signals` puts off Ctrl-C while something is between two places (`cli.signin.turn`). Signals end a `SignalledWait`
(`cli.agent`).
"""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def block_signals() -> Iterator[None]:
    """Signals that would end us take effect after the block."""
    with blocked_by_mask() if hasattr(signal, "pthread_sigmask") else put_off_by_handler():
        yield


@contextmanager
def blocked_by_mask() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def put_off_by_handler() -> Iterator[None]:
    """Where there are no masks, as on Windows. Only the main thread gets signals, and only there they are put off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is None:
        # Not set by Python, so it could not be put back.
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if arrived and callable(before):
            before(*arrived[0])
        elif arrived and before is signal.SIG_DFL:
            signal.raise_signal(signal.SIGINT)


class SignalledWait:
    """A wait that signals end. One thread waits, in which handlers run; any thread may call `wake` and `end`.

    Not a `threading.Event`: that holds a lock for a moment when a wait begins, and a handler that is called at that
    moment waits for the lock for ever. A signal that comes right before a wait ends it, too, by a byte that Python
    writes at once, before it calls the handler.
    """

    def __init__(self) -> None:
        self.ended = False
        self._woken = False
        self._reading, self._writing = socket.socketpair()
        for each in (self._reading, self._writing):
            each.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reading.close()
        self._writing.close()

    @contextmanager
    def until_signals(self, *, waking: Iterable[int], ending: Iterable[int]) -> Iterator[None]:
        """Within the block, these signals wake or end it. Call it in the main thread."""
        handlers = {**dict.fromkeys(waking, self.wake), **dict.fromkeys(ending, self.end)}
        before = {number: signal.signal(number, lambda *_, act=act: act()) for number, act in handlers.items()}
        descriptor = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)

    def wake(self) -> None:
        self._woken = True
        # If there is no room, enough is there to be read.
        with suppress(BlockingIOError):
            self._writing.send(b"\0")

    def end(self) -> None:
        self.ended = True
        self.wake()

    def wait(self, seconds: float) -> bool:
        """Wait for so long at most; whether somebody has called `wake` or `end` since the last wait."""
        if not self._woken:
            select.select([self._reading], [], [], seconds)
        with suppress(BlockingIOError):
            self._reading.recv(4096)
        woken, self._woken = self._woken, False
        return woken
