"""The part of an API server that speaks WebSocket over TLS: exec, in the v4 protocol of Kubernetes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trustme
from aiohttp import web
from multidict import CIMultiDictProxy

from tests.support.http_server import server_context

PROTOCOL = "v4.channel.k8s.io"
STDOUT, ERROR = b"\x01", b"\x03"
EXEC = "/api/v1/namespaces/default/pods/web/exec"


@dataclass
class ExecServer:
    """`url`, whom it lets in, and what it was asked. The output of every command is its own words."""

    url: str
    tokens: set[str]
    seen: list[CIMultiDictProxy[str]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    """Path and query of each request, as they arrived."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.headers)
        self.targets.append(request.raw_path)
        admitted = request.headers.get("Authorization", "").removeprefix("Bearer ") in self.tokens
        self.statuses.append(101 if admitted else 401)
        if not admitted:
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        words = " ".join(request.query.getall("command", []))
        answer = web.WebSocketResponse(protocols=(PROTOCOL,))
        await answer.prepare(request)
        await answer.send_bytes(STDOUT + words.encode())
        await answer.send_bytes(ERROR + b'{"status":"Success"}')
        await answer.close()
        return answer


@asynccontextmanager
async def exec_server(ca: trustme.CA, *, tokens: set[str]) -> AsyncIterator[ExecServer]:
    """An `ExecServer` in the running event loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = ExecServer(f"https://localhost:{listener.getsockname()[1]}", tokens)
        application = web.Application()
        application.router.add_get(EXEC, server.handle)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.SockSite(runner, listener, ssl_context=server_context(ca, "localhost")).start()
            yield server
        finally:
            await runner.cleanup()
