"""A wait that signals end: also in the moment in which it begins."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from ostiary.cli.agent.signalled_wait import SignalledWait

SECONDS = 60.0
# One signal for each wait, a little later each time, so that one of them meets every moment of it.
PROGRAM = """
import signal
from ostiary.cli.agent.signalled_wait import SignalledWait

def wait_once(waiting):
    while not waiting.wait(3600.0):
        pass

with SignalledWait() as waiting, waiting.until_signals(waking=[signal.SIGALRM], ending=[signal.SIGTERM]):
    for turn in range(20_000):
        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + turn % 50))
        wait_once(waiting)
    assert not waiting.ended
    signal.raise_signal(signal.SIGTERM)
    wait_once(waiting)
    assert waiting.ended
print("done")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer, which Windows does not have")
def test_a_signal_ends_it_at_any_moment() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout == "done\n", done.stderr


def test_handlers_are_as_before_when_it_is_over() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SignalledWait() as waiting:
        with waiting.until_signals(waking=(), ending=[signal.SIGTERM]):
            assert signal.getsignal(signal.SIGTERM) is not before
        assert signal.getsignal(signal.SIGTERM) is before
    descriptor = signal.set_wakeup_fd(-1)
    assert descriptor == -1


def test_a_wait_tells_once_that_it_was_woken() -> None:
    with SignalledWait() as waiting:
        assert not waiting.wait(0.0)
        waiting.wake()
        waiting.wake()
        assert waiting.wait(SECONDS)
        assert not waiting.wait(0.0)
        for _ in range(1_000_000 // 64):
            # More than there is room for.
            waiting.wake()
        assert waiting.wait(SECONDS)


def test_what_is_ended_stays_so() -> None:
    with SignalledWait() as waiting:
        states = [waiting.ended]
        waiting.end()
        assert waiting.wait(SECONDS)
        states.append(waiting.ended)
    assert states == [False, True]


def test_another_thread_wakes_it() -> None:
    results: list[bool] = []
    with SignalledWait() as waiting:
        thread = threading.Thread(target=lambda: results.append(waiting.wait(SECONDS)))
        thread.start()
        waiting.wake()
        thread.join(SECONDS)
    assert results == [True]
