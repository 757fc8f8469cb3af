"""Cuts what an HTTP/2 connection receives into frames (RFC 9113, section 4.1), and counts those that only cost time.

Used by `check.connection`. The library parses all that it is given at once, so it is given a few frames at a time.
"""

from __future__ import annotations

_PREFACE_BYTES, _HEAD_BYTES = 24, 9
_DATA, _HEADERS, _CONTINUATION = 0x0, 0x1, 0x9
_END_STREAM, _PADDED = 0x1, 0x8


class Frames:
    """What one connection has received and not handled.

    `control` counts frames that carry nothing of a call: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, RST_STREAM, unknown
    ones, and DATA that is empty and not the end of a call (CVE-2019-9512, 9513, 9514, 9515, 9518).
    """

    __slots__ = ("_data", "_left", "control")

    def __init__(self) -> None:
        self._data = bytearray()
        # How much of the frame that was taken in part is still to come; at first, of the client's preface.
        self._left = _PREFACE_BYTES
        self.control = 0

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def has_more(self) -> bool:
        """Whether `take` has something to return."""
        return len(self._data) >= _HEAD_BYTES or (self._left > 0 and len(self._data) > 0)

    def add(self, data: bytes) -> None:
        self._data += data

    def take(self, most: int) -> bytes:
        """The next *most* frames; of the last one as much as has come, once its head is complete."""
        data, at, size = self._data, 0, len(self._data)
        for _ in range(most):
            if not self._left:
                if size - at < _HEAD_BYTES:
                    break
                self._count(data[at : at + _HEAD_BYTES])
                self._left = _HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
            part = min(self._left, size - at)
            self._left -= part
            at += part
            if self._left:
                break
        taken = bytes(data[:at])
        # Amortised: a bytearray does not move what follows.
        del data[:at]
        return taken

    def _count(self, head: bytes | bytearray) -> None:
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if kind == _DATA:
            # Padding carries nothing, and no client of gRPC sends any.
            self.control += (length == 0 or bool(flags & _PADDED)) and not flags & _END_STREAM
        else:
            self.control += kind not in (_HEADERS, _CONTINUATION)
