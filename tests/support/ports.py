"""Ports for programs that must be told theirs before they start.

The kernel gives outgoing connections, and whoever binds port 0, a port of its own range at any moment: one from there
that was free a moment ago may be taken when the program starts. These lie outside of that range, so only another test
can take one. Tests that run at the same time choose at random from thousands.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_OWN_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
# Not given out twice by one process: the program that is to use one may not have started yet.
_given_out: set[int] = set()


def free_port() -> int:
    end = int(_OWN_RANGE.read_text().split()[0])
    assert end > _LOWEST + 1000, f"the kernel's own range begins at {end}"
    while True:
        port = random.SystemRandom().randrange(_LOWEST, end)
        if port not in _given_out and _is_free(port):
            _given_out.add(port)
            return port


def free_ports(count: int) -> list[int]:
    """Different ones."""
    return [free_port() for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that was closed a moment ago does not keep them from starting.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
