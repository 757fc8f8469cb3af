"""A server of the standard library in a thread of its own, for as long as a test needs it."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import TCPServer


@contextmanager
def serving(server: TCPServer) -> Iterator[None]:
    if server.socket.family != socket.AF_UNIX:
        # Connections inherit it. With Nagle's algorithm a response of two writes waits 40 ms for a delayed ACK.
        server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ours, theirs = socket.socketpair()
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        selector.register(theirs, selectors.EVENT_READ)
        thread = threading.Thread(target=_serve_until, args=(server, selector, theirs), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ours.close()
            thread.join()
            theirs.close()
            server.server_close()


def _serve_until(server: TCPServer, selector: selectors.BaseSelector, stop: socket.socket) -> None:
    """Like ``serve_forever``, but its end is an event: nobody waits for a poll interval."""
    while all(key.fileobj is not stop for key, _ in selector.select()):
        server.handle_request()
