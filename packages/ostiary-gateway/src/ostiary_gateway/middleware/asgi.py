"""Middleware for ASGI applications that authenticate and authorize requests themselves: Starlette, FastAPI, Django.

    app.add_middleware(ostiary_gateway.middleware.asgi.GatekeeperMiddleware, gatekeeper="backend.yaml")
    scope -> BackendRequest -> Gatekeeper -> scope["ostiary"] (`Access`), scope["user"] (`UserInfo`) -> application

See docs/how-to/protect-a-python-api.md for the line for each framework. No framework is imported.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from ostiary.errors import AccessRefused
from ostiary_gateway.authentication.bearer_token import bearer, decode_token
from ostiary_gateway.http1.headers import BadHeader, websocket_token
from ostiary_gateway.middleware.access import Access
from ostiary_gateway.middleware.gatekeeper import Gatekeeper
from ostiary_gateway.middleware.request import BackendRequest
from ostiary_gateway.proxy.target import encoded_path

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

# Keys of the scope. Starlette's ``request.user`` reads `user`.
ACCESS, USER = "ostiary", "user"
# RFC 6455, section 7.4.1: policy violation, for servers that cannot send an HTTP response instead.
POLICY_VIOLATION = 1008


class GatekeeperMiddleware:
    """Protect an application with *gatekeeper*: an instance, or the path of its ``backend.yaml``.

    Responds to requests that are not admitted, and to those whose view raises `AccessRefused`.
    """

    def __init__(self, app: AsgiApplication, gatekeeper: Gatekeeper | str | os.PathLike[str]) -> None:
        self._app = app
        self._gatekeeper = gatekeeper if isinstance(gatekeeper, Gatekeeper) else Gatekeeper.from_file(gatekeeper)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http" or kind == "websocket":
            request = request_of(scope)
            if self._gatekeeper.accepts_actions and request.take_action():
                _hide_action(scope, request)
            if request.mistake or not self._gatekeeper.is_open(request.target):
                await self._guard(scope, receive, send, request)
                return
            scope.pop(ACCESS, None)
        elif kind == "lifespan":
            receive = self._closing(receive)
        await self._app(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send, request: BackendRequest) -> None:
        gatekeeper = self._gatekeeper
        try:
            access = gatekeeper.recall(request) or await gatekeeper.check(request)
        except AccessRefused as refusal:
            await send_refusal(scope, receive, send, refusal)
            return
        scope[ACCESS] = access
        scope[USER] = access.user
        answer = _AnswerOnItsWay(send, access)
        try:
            await self._app(scope, receive, answer.send)
        except AccessRefused as refusal:
            if answer.status:
                gatekeeper.fail(access)
                raise
            answer.status = refusal.status
            await send_refusal(scope, receive, send, refusal)
        except BaseException:
            gatekeeper.fail(access)
            raise
        gatekeeper.finish(access, answer.status)

    def _closing(self, receive: Receive) -> Receive:
        """Close the gatekeeper when the server shuts the application down."""

        async def receive_and_close() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._gatekeeper.close()
            return message

        return receive_and_close


class _AnswerOnItsWay:
    """Wrap `send`: record the status of the response and add the ``Audit-Id``."""

    __slots__ = ("_audit_id", "_is_action", "_send", "status")

    def __init__(self, send: Send, access: Access) -> None:
        self._send = send
        self._audit_id = access.request_id.encode()
        self._is_action = access.request.action is not None
        self.status = 0

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"audit-id", self._audit_id)]
            if self._is_action and not any(name.lower() == b"cache-control" for name, _ in headers):
                # The request has no Authorization header, which would keep a shared cache from storing the response
                # (RFC 9111, section 3.5).
                headers.append((b"cache-control", b"private"))
            message["headers"] = headers
        elif kind == "websocket.accept":
            self.status = 101
        await self._send(message)


# --- reading the scope ---


def request_of(scope: Scope) -> BackendRequest:
    """Return the request of an ASGI scope."""
    request = BackendRequest(scope.get("method", "GET"), b"")
    if scope["type"] == "websocket":
        request.upgrade = "websocket"
    authorization = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            if authorization is not None:
                request.mistake = "the request has two Authorization headers"
            authorization = value
        elif name == b"user-agent":
            request.user_agent = value
        elif name == b"host":
            # Two Host headers count as none, so no action token matches.
            request.host = b"" if request.host else value
        elif name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            request.has_body = True
        elif name[:11] == b"impersonate":
            request.mistake = "impersonation is not possible here: ask through the gateway"
    client = scope.get("client")
    if client:
        request.remote = client[0]
    _read_target(scope, request)
    if authorization is not None:
        request.token = bearer(authorization)
    elif request.upgrade:
        _read_websocket_token(scope, request)
    return request


def _read_target(scope: Scope, request: BackendRequest) -> None:
    path, raw = scope["path"], scope.get("raw_path")
    if raw is None:
        raw = encoded_path(path.encode())
    elif raw.decode("latin-1") != path and unquote(raw.decode("latin-1")) != path:
        # A component in between has changed one of them. The path that is authorized must be the one that the
        # application routes by.
        request.mistake = "the path has two readings"
    query = scope["query_string"]
    request.target = raw + b"?" + query if query else raw


def _hide_action(scope: Scope, request: BackendRequest) -> None:
    """Hide the action token from views and from the server's log: restore the request as it was before the redirect."""
    scope["query_string"] = request.target.partition(b"?")[2]
    scope["headers"] = [header for header in scope["headers"] if header[0] != b"authorization"]


def _read_websocket_token(scope: Scope, request: BackendRequest) -> None:
    """Read a WebSocket's token from its subprotocols: browsers cannot set headers. Views do not see it."""
    try:
        encoded = websocket_token(scope["headers"])
    except BadHeader as error:
        request.mistake = str(error)
        return
    if encoded is not None:
        request.token = decode_token(encoded)


# --- responses ---


async def send_refusal(scope: Scope, receive: Receive, send: Send, refusal: AccessRefused) -> None:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in refusal.headers]
    headers.append((b"content-length", str(len(refusal.body)).encode()))
    prefix = "http"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": ""})
            return
        prefix = "websocket.http"
    await send({"type": f"{prefix}.response.start", "status": refusal.status, "headers": headers})
    body = b"" if scope.get("method") == "HEAD" else refusal.body
    await send({"type": f"{prefix}.response.body", "body": body})
