"""A wait that signals end, at whichever moment they come. Used by `keeper`."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Self


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
