"""Short-lived clients over TLS 1.3: each connects, shakes hands, sends one GET unless told not to, and closes.

Run by `bench.handshakes`, in a process of its own on the load's core. Prints how many connections were resumed.
"""

from __future__ import annotations

import argparse
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

THREADS = 4
TIMEOUT = 30.0
BODY_BYTES = 1024


class ShortLived:
    """One client after the other, each with a connection of its own. *resume*: with the session of the one before."""

    def __init__(self, port: int, authority: Path, requests: list[bytes], *, resume: bool, get: bool) -> None:
        self._port, self._resume, self._get = port, resume, get
        self._requests = cycle(requests)
        self._context = ssl.create_default_context(cafile=authority)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._session: ssl.SSLSession | None = None
        self.resumed = 0
        if resume:
            # A ticket comes after the handshake, with the first answer.
            self._visit(get=True)
            self.resumed = 0

    def run(self, count: int) -> int:
        for _ in range(count):
            self._visit(get=self._get)
        return self.resumed

    def _visit(self, *, get: bool) -> None:
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT)
        with self._context.wrap_socket(plain, server_hostname="127.0.0.1", session=self._session) as tls:
            if get:
                _ask(tls, next(self._requests))
                if self._resume:
                    self._session = tls.session
            self.resumed += bool(tls.session_reused)


def _ask(tls: ssl.SSLSocket, request: bytes) -> None:
    tls.sendall(request)
    answer = b""
    while len(answer.partition(b"\r\n\r\n")[2]) < BODY_BYTES:
        data = tls.recv(65536)
        if not data:
            raise RuntimeError(f"the answer ends after {len(answer)} bytes")
        answer += data
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(answer[:100])


def read_requests(targets: Path) -> list[bytes]:
    """A request for each line of *targets*: the token and the path."""
    lines = (line.split() for line in targets.read_text().splitlines())
    return [
        f"GET {path} HTTP/1.1\r\nHost: gateway.test\r\nUser-Agent: kubectl/v1.33.1 (linux/amd64) kubernetes/8adc0f0\r\n"
        f"Accept: application/json\r\nAuthorization: Bearer {token}\r\nAccept-Encoding: gzip\r\n\r\n".encode()
        for token, path in lines
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.handshake_load", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("authority", type=Path)
    parser.add_argument("targets", type=Path)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--no-request", action="store_true")
    options = parser.parse_args()
    requests = read_requests(options.targets)
    clients = [
        ShortLived(options.port, options.authority, requests, resume=options.resume, get=not options.no_request)
        for _ in range(THREADS)
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        print(sum(pool.map(lambda client: client.run(options.count // THREADS), clients)))


if __name__ == "__main__":
    main()
