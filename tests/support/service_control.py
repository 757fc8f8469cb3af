#!/usr/bin/env python3
"""Stands for ``systemctl`` where a page of the docs has a gateway that is a service: ``start`` and ``stop`` it.

It runs as a program of its own, in the folder with the ``gateway.yaml``, with whatever Python there is. Starting
returns once the gateway serves, and stopping once it has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PID, LOG = Path("service.pid"), Path("service.log")
SECONDS = 60.0


def start() -> None:
    with LOG.open("w") as log:
        command = ["ostiary-gateway", "serve", "--config", "gateway.yaml"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    PID.write_text(str(process.pid))
    give_up_at = time.monotonic() + SECONDS
    while "serving on" not in LOG.read_text():
        if process.poll() is not None or time.monotonic() > give_up_at:
            sys.exit(LOG.read_text())
        time.sleep(0.05)


def stop() -> None:
    if not PID.exists():
        return
    pid = int(PID.read_text())
    PID.unlink()
    os.kill(pid, signal.SIGTERM)
    give_up_at = time.monotonic() + SECONDS
    while _is_running(pid):
        if time.monotonic() > give_up_at:
            os.kill(pid, signal.SIGKILL)
            sys.exit("it did not end")
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    # It is nobody's child here, so what has ended may wait for its parent as a zombie.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    {"start": start, "stop": stop}[sys.argv[1]]()
