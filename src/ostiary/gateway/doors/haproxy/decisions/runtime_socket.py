"""Sends commands to HAProxy's runtime socket (``stats socket``), and reads what it says.

Called by the pusher. One connection for each line: so nothing is left open when HAProxy is reloaded, and the next line
reaches the process that has taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

SECONDS = 2.0
LISTING_SECONDS = 30.0
MOST_OUTPUT = 64 * 1024


class RuntimeSocket:
    """The socket of one HAProxy."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    async def send(self, line: bytes) -> bytes:
        """What HAProxy says to *line*; raises `OSError`, also if it takes too long."""
        async with asyncio.timeout(SECONDS), self._connect() as (reader, writer):
            writer.write(line)
            output = b""
            while data := await reader.read(MOST_OUTPUT):
                output += data
                if len(output) > MOST_OUTPUT:
                    raise OSError(0, "HAProxy says more than was asked for")
            return output

    async def entries(self, name: str) -> AsyncIterator[tuple[str, str]]:
        """The keys of the map *name* with their texts; raises `OSError`."""
        async with asyncio.timeout(LISTING_SECONDS), self._connect() as (reader, writer):
            writer.write(f"show map {name}\n".encode("ascii"))
            while text := (await reader.readline()).decode("ascii", "replace"):
                # An address, the key and the text.
                words = text.split()
                if len(words) == 3:
                    yield words[1], words[2]

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=MOST_OUTPUT)
        try:
            yield reader, writer
        finally:
            writer.close()
