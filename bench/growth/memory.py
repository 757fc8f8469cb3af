"""How much memory processes hold."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def resident(pid: int | None = None) -> int:
    """Bytes of *pid* with its children, or of this process alone."""
    if pid is None:
        return _resident_alone(os.getpid())
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return _resident_alone(pid) + sum(resident(int(child)) for child in children)


def _resident_alone(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()
