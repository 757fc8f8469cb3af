"""The middleware for WSGI applications that check tokens and policy themselves: Flask, Django.

    app.wsgi_app = ostiary_gateway.middleware.wsgi.GatekeeperMiddleware(app.wsgi_app, "backend.yaml")

docs/how-to/protect-a-python-api.md has the line for each framework.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from ostiary.errors import AccessRefused
from ostiary_gateway.authentication.bearer_token import bearer
from ostiary_gateway.middleware.access import SyncAccess
from ostiary_gateway.middleware.request import BackendRequest
from ostiary_gateway.middleware.sync_gatekeeper import SyncGatekeeper
from ostiary_gateway.proxy.target import encoded_path
from ostiary_gateway.wire.action_token import split_parameter

if TYPE_CHECKING:
    from types import TracebackType
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

# The middleware for WSGI applications: Flask, Django and all others. It needs none of them.
#
#     environ -> BackendRequest -> SyncGatekeeper -> environ["ostiary"] (`SyncAccess`) -> the application
#
# Public as `ostiary_gateway.middleware.wsgi`. It answers what must not pass, and requests whose view raises
# `AccessRefused`.

# Where views find what they may know.
ACCESS, USER = "ostiary", "ostiary.user"


class GatekeeperMiddleware:
    """Lets through what *gatekeeper* does: one that is made already, or the path of its ``backend.yaml``."""

    def __init__(self, app: WSGIApplication, gatekeeper: SyncGatekeeper | str | os.PathLike[str]) -> None:
        self._app = app
        if not isinstance(gatekeeper, SyncGatekeeper):
            gatekeeper = SyncGatekeeper.from_file(gatekeeper)
        self._gatekeeper = gatekeeper

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = request_of(environ)
        if self._gatekeeper.accepts_actions and request.take_action():
            _hide_action(environ, request)
        # Nobody but us sets them; a server in front of us that does would be believed by views.
        environ.pop(ACCESS, None)
        environ.pop(USER, None)
        if not request.mistake and self._gatekeeper.is_open(request.target):
            return self._app(environ, start_response)
        try:
            access = self._gatekeeper.check(request)
        except AccessRefused as refusal:
            return send_refusal(environ, start_response, refusal)
        environ[ACCESS] = access
        environ[USER] = access.user
        answer = _AnswerHead(start_response, access)
        try:
            body = self._app(environ, answer.start)
        except AccessRefused as refusal:
            if answer.status:
                self._gatekeeper.fail(access)
                raise
            self._gatekeeper.finish(access, refusal.status)
            return send_refusal(environ, start_response, refusal)
        except BaseException:
            self._gatekeeper.fail(access)
            raise
        return _Body(body, answer, self._gatekeeper)


class _AnswerHead:
    """The head of the answer on its way to the server: its status is noted, and it gets the id of the request."""

    def __init__(self, start_response: StartResponse, access: SyncAccess) -> None:
        self._start_response = start_response
        self.access = access
        self.status = 0

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExceptionInfo | None = None, /
    ) -> Callable[[bytes], object]:
        self.status = int(status.split(" ", 1)[0])
        sent = [*headers, ("Audit-Id", self.access.request_id)]
        if self.access.request.action is not None and not any(name.lower() == "cache-control" for name, _ in headers):
            # The request has no Authorization header, by which a shared cache would know not to keep the answer.
            sent.append(("Cache-Control", "private"))
        return self._start_response(status, sent, exc_info)


class _Body:
    """The body of the answer. The server closes it when it is sent, or when nobody wants it any more."""

    def __init__(self, body: Iterable[bytes], answer: _AnswerHead, gatekeeper: SyncGatekeeper) -> None:
        self._body, self._answer, self._gatekeeper = body, answer, gatekeeper

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._gatekeeper.finish(self._answer.access, self._answer.status)


# --- what an environ says ---


def request_of(environ: WSGIEnvironment) -> BackendRequest:
    """The request of a WSGI environ. The path is the one that the application routes by, encoded again."""
    # As PEP 3333 has it: bytes, each as one character.
    path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1")
    target = encoded_path(path)
    query = environ.get("QUERY_STRING", "")
    if query:
        target += b"?" + query.encode("latin-1")
    request = BackendRequest(
        environ["REQUEST_METHOD"],
        target,
        remote=environ.get("REMOTE_ADDR", ""),
        user_agent=environ.get("HTTP_USER_AGENT", "").encode("latin-1"),
        host=environ.get("HTTP_HOST", "").encode("latin-1"),
        has_body="HTTP_TRANSFER_ENCODING" in environ or environ.get("CONTENT_LENGTH", "") not in ("", "0"),
    )
    authorization = environ.get("HTTP_AUTHORIZATION")
    if authorization is not None:
        request.token = bearer(authorization.encode("latin-1"))
    if any(name.startswith("HTTP_IMPERSONATE") for name in environ):
        request.mistake = "impersonation is not possible here: ask through the gateway"
    return request


def _hide_action(environ: WSGIEnvironment, request: BackendRequest) -> None:
    """A view sees the request as it was before the gateway redirected it. So does the log of the server."""
    environ["QUERY_STRING"] = request.target.partition(b"?")[2].decode("latin-1")
    environ.pop("HTTP_AUTHORIZATION", None)
    for name in ("REQUEST_URI", "RAW_URI"):
        if name in environ:
            environ[name] = split_parameter(environ[name].encode("latin-1"))[0].decode("latin-1")


def send_refusal(environ: WSGIEnvironment, start_response: StartResponse, refusal: AccessRefused) -> list[bytes]:
    phrase = HTTPStatus(refusal.status).phrase
    headers = [*refusal.headers, ("Content-Length", str(len(refusal.body)))]
    start_response(f"{refusal.status} {phrase}", headers)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [refusal.body]
