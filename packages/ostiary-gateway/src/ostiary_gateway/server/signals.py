"""Signal handling of the gateway's processes: stop, stop immediately, or reload."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine

SIGNALS = frozenset({signal.SIGHUP, signal.SIGTERM, signal.SIGINT})


class StopRequest:
    """Set by signals: the first requests a graceful stop, the second an immediate one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()

    def __call__(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()


def handle_signals(stop: StopRequest, reload: Callable[[], Coroutine[object, object, object]]) -> None:
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[object]] = set()

    def begin_reload() -> None:
        task = loop.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, begin_reload)
    # The signals were blocked until now: a worker inherits the mask of its supervisor.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
