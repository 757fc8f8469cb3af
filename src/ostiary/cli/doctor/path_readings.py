"""The paths that an application may understand, of one that arrives. Pure.

A proxy that forwards ``/x/..%2fadmin`` may have decided on another path than the one that an application makes of it.
Which one that is depends on the application, so all usual readings are looked at: percent-decoded once or twice,
``\\`` as ``/``, without ``;parameters``, without empty and dot segments, up to a NUL or a ``#``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

MOST_READINGS = 400
MOST_ROUNDS = 5
_ABSOLUTE = re.compile(rb"[a-zA-Z][a-zA-Z0-9+.-]*://[^/?#]*")
# Two bytes for a character of one: not UTF-8, and yet read as "." and "/" by some.
_OVERLONG = ((b"\xc0\xae", b"."), (b"\xc0\xaf", b"/"), (b"\xc1\x9c", b"\\"))


def path_readings(target: bytes) -> frozenset[bytes]:
    """Every path that a program may take the request target *target* for."""
    path = _ABSOLUTE.sub(b"", target, count=1).partition(b"?")[0]
    readings, new = {path}, {path}
    for _ in range(MOST_ROUNDS):
        new = {step(reading) for reading in new for step in _STEPS} - readings
        readings |= new
        if not new or len(readings) > MOST_READINGS:
            break
    return frozenset(readings)


def may_mean(target: bytes, path: bytes) -> bool:
    """Whether a program may take *target* for *path*, or for something below it."""
    return any(reading == path or reading.startswith(path.rstrip(b"/") + b"/") for reading in path_readings(target))


def _without_dots(path: bytes) -> bytes:
    segments: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            segments = segments[:-1]
        elif segment != b".":
            segments.append(segment)
    return b"/" + b"/".join(segments).lstrip(b"/")


def _without_empty(path: bytes) -> bytes:
    return re.sub(rb"/{2,}", b"/", path)


def _without_parameters(path: bytes) -> bytes:
    return re.sub(rb";[^/]*", b"", path)


def _from_slash(path: bytes) -> bytes:
    return path if path.startswith(b"/") else b"/" + path


def _plain_overlong(path: bytes) -> bytes:
    for encoded, plain in _OVERLONG:
        path = path.replace(encoded, plain)
    return path


_STEPS: tuple[Callable[[bytes], bytes], ...] = (
    unquote_to_bytes,
    _without_dots,
    _without_empty,
    _without_parameters,
    _from_slash,
    _plain_overlong,
    lambda path: path.replace(b"\\", b"/"),
    lambda path: path.partition(b"\0")[0],
    lambda path: path.partition(b"#")[0],
)
