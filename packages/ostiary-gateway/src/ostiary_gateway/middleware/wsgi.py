"""Middleware for WSGI applications that authenticate and authorize requests themselves: Flask, Django.

    app.wsgi_app = ostiary_gateway.middleware.wsgi.GatekeeperMiddleware(app.wsgi_app, "backend.yaml")
    environ -> BackendRequest -> SyncGatekeeper -> environ["ostiary"] (`SyncAccess`) -> the application

See docs/how-to/protect-a-python-api.md for the line for each framework. No framework is imported.
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


# Keys of the environ.
ACCESS, USER = "ostiary", "ostiary.user"


class GatekeeperMiddleware:
    """Protect an application with *gatekeeper*: an instance, or the path of its ``backend.yaml``.

    Responds to requests that are not admitted, and to those whose view raises `AccessRefused`.
    """

    def __init__(self, app: WSGIApplication, gatekeeper: SyncGatekeeper | str | os.PathLike[str]) -> None:
        self._app = app
        if not isinstance(gatekeeper, SyncGatekeeper):
            gatekeeper = SyncGatekeeper.from_file(gatekeeper)
        self._gatekeeper = gatekeeper

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = request_of(environ)
        if self._gatekeeper.accepts_actions and request.take_action():
            _hide_action(environ, request)
        # Only this middleware may set them: views would trust values set by a server in front.
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
    """Wrap `start_response`: record the status of the response and add the ``Audit-Id``."""

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
            # The request has no Authorization header, which would keep a shared cache from storing the response (RFC
            # 9111, section 3.5).
            sent.append(("Cache-Control", "private"))
        return self._start_response(status, sent, exc_info)


class _Body:
    """The body of the response. The server closes it when it is sent or the client disconnects."""

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


# --- reading the environ ---


def request_of(environ: WSGIEnvironment) -> BackendRequest:
    """Return the request of a WSGI environ.

    Its path is the one that the application routes by, percent-encoded again.
    """
    # PEP 3333: native strings hold bytes decoded as Latin-1.
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
    """Hide the action token from views and from the server's log: restore the request as it was before the redirect."""
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
