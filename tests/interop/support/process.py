"""A server in a process of its own, whose output goes to a file. It is ended by its own process id."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

SECONDS = 120.0
"""How long a server may take to start, or to end; only a failure takes that long."""


class Server:
    """*command*, from the ``with`` to the end of its block."""

    def __init__(
        self, command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command, self.log = [str(part) for part in command], log
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self.last_words())
        self.stop()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait(SECONDS)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Ask again and again until *ready*; a server that ended will never be."""
        wait_until(ready, what=self._command[0], alive=lambda: self.process.poll() is None, told=self.last_words)

    def last_words(self) -> str:
        return f"{self._command[0]}:\n{self.log.read_text(errors='replace')[-2000:]}"


def wait_until(
    ready: Callable[[], bool],
    *,
    what: str,
    seconds: float = SECONDS,
    alive: Callable[[], bool] = lambda: True,
    told: Callable[[], str] = lambda: "",
) -> None:
    """For what another program does in its own time and tells nobody: ask until it is done."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert alive(), f"{what} ended\n{told()}"
        assert time.monotonic() < deadline, f"{what}: not after {seconds:.0f} s\n{told()}"
        time.sleep(0.05)
