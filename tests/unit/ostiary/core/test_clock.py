"""The clock of the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ostiary.core.clock import SYSTEM_CLOCK
from tests.support.tiers import missing

HOUR = 3600


def test_both_hands_go_forward() -> None:
    before, start = SYSTEM_CLOCK.now(), SYSTEM_CLOCK.monotonic()
    assert SYSTEM_CLOCK.now() >= before
    assert SYSTEM_CLOCK.monotonic() >= start


@pytest.mark.needs("unshare")
def test_a_machine_that_was_suspended_knows_how_long() -> None:
    """Or a replica that wakes up would trust what it remembers of tokens that were revoked while it slept."""
    # In a namespace whose machine has been suspended for an hour, so to speak.
    program = "from ostiary.core.clock import SYSTEM_CLOCK; print(SYSTEM_CLOCK.monotonic())"
    command = ["unshare", "--time", "--boottime", str(HOUR), "--", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        missing("the right to make a time namespace")
    assert float(done.stdout) - SYSTEM_CLOCK.monotonic() > HOUR / 2
