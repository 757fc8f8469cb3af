"""How many instructions a process spends on some work, counted by callgrind: neighbours do not change them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.pace import pace

# How long an idle process is counted, to know what its background work takes.
IDLE_SECONDS = pace(5.0, quick=1.0)


def valgrind(folder: Path) -> list[str]:
    """What to put before a command. Counting begins with `Counter.start`; until then it is quicker."""
    output = f"--callgrind-out-file={folder / 'callgrind'}"
    return ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--combine-dumps=no", output]


class Counter:
    """Counts in a process that was started behind `valgrind`, with the same folder."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid, self._folder = pid, folder

    def start(self) -> None:
        self._control("-i", "on")

    def instructions_of(self, work: Callable[[], None]) -> float:
        """What the process does during *work*; for one that does nothing by itself."""
        return self._counted(work)[0]

    def instructions_for(self, work: Callable[[], None]) -> float:
        """What *work* makes the process do, without what it does in the background all the time."""
        idle, idle_seconds = self._counted(lambda: time.sleep(IDLE_SECONDS))
        busy, seconds = self._counted(work)
        return busy - idle * seconds / idle_seconds

    def _counted(self, work: Callable[[], None]) -> tuple[int, float]:
        self._control("-z")
        before, began = set(self._dumps()), time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        self._control("-d")
        (dump,) = set(self._dumps()) - before
        summary = next(line for line in dump.read_text().splitlines() if line.startswith("summary:"))
        return int(summary.split()[1]), seconds

    def _dumps(self) -> list[Path]:
        return list(self._folder.glob("callgrind.*"))

    def _control(self, *options: str) -> None:
        subprocess.run(["callgrind_control", *options, str(self._pid)], check=True, capture_output=True)
