"""A program that outlives the process that started it, and has none of its pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

STARTER = """
import sys
from ostiary.core.process.detached import start_detached
print(start_detached([sys.executable, "-c", sys.argv[1], sys.argv[2]]), flush=True)
"""
BESIDE = "import sys; print('to nobody'); open(sys.argv[1], 'w').write('ran on')"


def test_it_runs_on_and_whoever_reads_our_stdout_does_not_wait_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "line")
    words = [sys.executable, "-W", "error", "-c", STARTER, BESIDE, str(tmp_path / "line")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    # It waits for a reader of the named pipe, so it has not ended yet.
    number = int(done.stdout)
    try:
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "line").read_text() == "ran on"
    except BaseException:
        os.kill(number, signal.SIGKILL)
        raise
