"""Defers signals such as Ctrl-C during critical sections."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def block_signals() -> Iterator[None]:
    """Defer terminating signals until the block ends."""
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
    """Defer signals without masks, as on Windows. Only the main thread receives signals, so only it defers them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is None:
        # The handler was not set from Python, so it could not be restored.
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
