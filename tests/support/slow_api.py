"""A plain HTTP API that responds when a test lets it, and how a gateway names it as an upstream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.gateway import SECONDS
from tests.support.http_server import HttpServer, Request, Response


class Slow:
    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def respond(self, request: Request) -> Response:
        self.asked.set()
        self.may_answer.wait(SECONDS)
        return Response(body=b"done")


@contextmanager
def slow_api() -> Iterator[tuple[Slow, dict[str, Any]]]:
    slow = Slow()
    with HttpServer(slow.respond).running() as server:
        try:
            yield slow, {"name": "slow", "server": server.url, "prefix": "/slow", "attributes": "http"}
        finally:
            slow.may_answer.set()
