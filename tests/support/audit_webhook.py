"""A webhook that receives audit events."""

from __future__ import annotations

from typing import Any

from tests.support.http_server import HttpServer, Request, Response


class Webhook(HttpServer):
    """`answers` are the statuses that it responds with, 200 when there are none left. `batches` are those accepted."""

    def __init__(self) -> None:
        super().__init__(self._respond)
        self.url += "/audit"
        self.answers: list[int] = []
        self.batches: list[dict[str, Any]] = []

    @property
    def events(self) -> list[Any]:
        return [event for batch in self.batches for event in batch["items"]]

    def _respond(self, request: Request) -> Response:
        status = self.answers.pop(0) if self.answers else 200
        if status < 300:
            self.batches.append(request.json)
        return Response(status)
