"""What whole processes cost, side by side: they take turns, one right after the other, for the machine is shared."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WARM_UP = 3


@dataclass(frozen=True)
class Took:
    """Medians of a process, in seconds."""

    wall: float
    cpu: float


def alternating(
    commands: Mapping[str, Sequence[str]],
    env: Mapping[str, str],
    turns: int,
    *,
    stdin: Mapping[str, Path] | None = None,
) -> dict[str, Took]:
    """The medians of each command. *stdin* has the file that it reads, if it reads one."""
    took: dict[str, list[Took]] = {name: [] for name in commands}
    for turn in range(WARM_UP + turns):
        # Now in this order, now in the other.
        for name in sorted(commands, reverse=bool(turn % 2)):
            one = _once(commands[name], env, Path(os.devnull) if stdin is None else stdin[name])
            if turn >= WARM_UP:
                took[name].append(one)
    return {
        name: Took(statistics.median(each.wall for each in found), statistics.median(each.cpu for each in found))
        for name, found in took.items()
    }


def _once(command: Sequence[str], env: Mapping[str, str], stdin: Path) -> Took:
    null = subprocess.DEVNULL
    with stdin.open("rb") as given:
        started = time.perf_counter()
        process = subprocess.Popen(command, env=env, stdin=given, stdout=null, stderr=null)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return Took(wall, usage.ru_utime + usage.ru_stime)
