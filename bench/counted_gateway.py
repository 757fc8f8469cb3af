"""A whole gateway behind callgrind, and requests for it. Used by `narrowed` and `new_requests`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.gateway import status_of
from bench.instructions import Counter, valgrind
from bench.peers import Peer, backend
from bench.stores_gateways import ALL_CORES, GatewaySite


@contextmanager
def counted_gateway() -> Iterator[tuple[Peer, Counter]]:
    """The counter is not started yet: sign in first."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        home = folder / "counted"
        with backend(folder) as upstream:
            site = GatewaySite(folder, upstream)
            with site.gateway("g", {"type": "memory"}, core=ALL_CORES, behind=valgrind(home), home=home) as gateway:
                yield gateway, Counter(gateway.pid, home)


def send_all(gateway: Peer, requests: Iterable[str]) -> None:
    """One after the other on one connection; each must be answered with 200."""

    async def send() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        for request in requests:
            assert await status_of(reader, writer, request) == 200
        writer.close()

    asyncio.run(send())
