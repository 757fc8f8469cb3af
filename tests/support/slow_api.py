"""A plain HTTP API that answers when it is let, and how a gateway names it as an upstream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.gateway import SECONDS


class Slow:
    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()


@contextmanager
def slow_api() -> Iterator[tuple[Slow, dict[str, Any]]]:
    slow = Slow()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            slow.asked.set()
            slow.may_answer.wait(SECONDS)
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"done")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A gateway that went away is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield slow, {"name": "slow", "server": address, "prefix": "/slow", "attributes": "http"}
    finally:
        slow.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
