"""Keeps what came of a request's body, so that the request can be sent a second time.

Filled by `upstream.proxied`: while there is no connection yet, and in case the upstream rejects our own credential.
"""

from __future__ import annotations

# A body is kept up to here.
REPLAYABLE_BYTES = 64 * 1024


class KeptBody:
    """The parts of one body. `is_complete` is False from the moment on that there is too much of it to be kept."""

    __slots__ = ("_size", "is_complete", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_complete = True
        self._size = 0

    def add(self, data: bytes, *, connected: bool) -> None:
        """Keep a part; all of them while there is no connection to send them to."""
        if not self.is_complete:
            return
        self._size += len(data)
        if connected and self._size > REPLAYABLE_BYTES:
            self.is_complete = False
            self.parts = []
        else:
            self.parts.append(data)
