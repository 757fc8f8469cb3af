"""A clock that a test can set while a process runs: libfaketime reads the offset from a file at every look."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.tiers import missing

_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
)


class SetClock:
    """The time of day of the processes that are started with `environment`; other clocks go on undisturbed."""

    def __init__(self, folder: Path) -> None:
        library = next((path for path in _LIBRARIES if os.path.exists(path)), None)
        if library is None:
            missing("libfaketime")
        self._file = folder / "clock"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def set(self, seconds: int) -> None:
        """So many seconds from the true time, ahead or back."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}s\n")
        os.replace(new, self._file)
