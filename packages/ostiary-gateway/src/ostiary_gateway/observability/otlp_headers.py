"""Reads the headers that a collector requires, such as an API key, from a file with one ``Name: value`` per line.

The contents of the file are secret and never quoted.
"""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)[ \t]*")
# Headers of the connection or of the body, which the exporter sets.
_OURS = frozenset(("connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding"))


def read_headers(path: Path) -> dict[str, str]:
    """Return the headers with lower-case names. Raises `OSError`, or `ValueError` for an invalid line."""
    headers: dict[str, str] = {}
    for number, line in enumerate(path.read_bytes().decode("latin-1").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not a header")
        name = match[1].lower()
        if name in _OURS or name in headers:
            raise ValueError(f"line {number} sets a header that is set already")
        headers[name] = match[2]
    return headers
