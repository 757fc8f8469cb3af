"""What a command needs beyond the package itself; see `ostiary.core.extras`."""

from __future__ import annotations

from ostiary.core.extras import needing

__all__ = ["needing"]
