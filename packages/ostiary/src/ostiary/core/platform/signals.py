"""Ctrl-C put off while something is between two places. Called by `cli.signin.turn`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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
