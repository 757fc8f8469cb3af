"""A server for SubjectAccessReviews over TLS that responds as a test says."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import trustme

from tests.support.http_server import HttpServer, Response, server_context


class ReviewServer(HttpServer):
    """`answer` turns a review into a response; None closes the connection without one."""

    def __init__(self, ca: trustme.CA, *, client_certificates: ssl.VerifyMode = ssl.CERT_NONE) -> None:
        context = server_context(ca, "localhost", client_certificates=client_certificates)
        super().__init__(lambda request: self.answer(request.json), tls=context)
        self.answer: Callable[[dict[str, Any]], Response | None] = lambda review: status(review, allowed=True)


def status(review: dict[str, Any], *, code: int = 201, **said: Any) -> Response:
    """The review with its status."""
    return Response(code, {**review, "status": said})
