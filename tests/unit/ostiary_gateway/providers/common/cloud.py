"""A local server that plays parts of clouds: what it responds to each path."""

from __future__ import annotations

import trustme

from tests.support.http_server import HttpServer, Response


class CloudServer(HttpServer):
    """Responds by path; 404 if there is nothing for it. With an authority it speaks TLS."""

    def __init__(self, ca: trustme.CA | None = None) -> None:
        super().__init__(lambda request: self.responses.get(request.path, Response(404, {})), tls=ca)
        self.responses: dict[str, Response] = {}
