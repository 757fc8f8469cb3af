"""A real HTTP server that takes audit events."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Webhook:
    """A real HTTP server that takes events; `answers` are the codes it gives, 200 when there are none left."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.batches: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = webhook.answers.pop(0) if webhook.answers else 200
                webhook.headers.append({name.lower(): value for name, value in self.headers.items()})
                if code < 300:
                    webhook.batches.append(json.loads(body))
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/audit"

    @property
    def events(self) -> list[Any]:
        return [event for batch in self.batches for event in batch["items"]]


@contextmanager
def running_webhook() -> Iterator[Webhook]:
    made = Webhook()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
