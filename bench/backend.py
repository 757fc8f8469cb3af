"""What it costs a Python API to check tokens and policy itself: Starlette bare, and behind our middleware.

The application is called as a server calls it, without sockets, so that what is measured is the middleware and not a
network. The gateway is a real one; it is asked once, since token and decision are remembered from then on.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.pace import pace
from bench.table import Row
from ostiary_gateway.middleware import Gatekeeper
from ostiary_gateway.middleware.asgi import GatekeeperMiddleware
from tests.support.backend import WEBHOOKS, backend_settings, prepare
from tests.support.gateway import Gateway, Site, role

REQUESTS, TURNS = 1000, pace(40, quick=2)
PATH = "/v1/shop/carts/c1"
TEMPLATES: dict[str, Any] = {"type": "http", "templates": ["/v1/{namespace}/{resource}/{name}"]}

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        site = Site(Path(place), trustme.CA())
        site.users("alice")
        prepare(site)
        site.policy(role("shop", {"apiGroups": [""], "resources": ["carts"], "verbs": ["get"]}, User="alice"))
        gateway = stack.enter_context(site.serving(webhooks=WEBHOOKS))
        token = gateway.login("alice").token
        for what, more in (("", {}), (", with audit events in a file", {"audit": {"log": {"path": "backend.log"}}})):
            bare, guarded = asyncio.run(_compare(gateway, token, **more))
            added = (guarded - bare) * 1e6
            yield Row(f"ASGI middleware, decision remembered{what}: added to a request", f"{added:.1f} us", "<= 40 us")
            yield Row(
                f"the same{what}: Starlette behind the middleware / bare Starlette",
                f"{guarded / bare:.2f} ({guarded * 1e6:.0f} us / {bare * 1e6:.0f} us)",
            )


async def _view(request: Request) -> Response:
    return Response(b"{}")


def _application() -> Starlette:
    return Starlette(routes=[Route("/v1/{namespace}/carts/{name}", _view)])


async def _compare(gateway: Gateway, token: str, **more: Any) -> tuple[float, float]:
    """Seconds for one request, bare and guarded: the best of turns that alternate, since neighbours only add to one."""
    settings = backend_settings(gateway, attributes=TEMPLATES, **more)
    gatekeeper = Gatekeeper.from_mapping(json.loads(json.dumps(settings)), directory=gateway.site.folder)
    bare, guarded = _application(), GatekeeperMiddleware(_application(), gatekeeper)
    turns: dict[str, list[float]] = {"bare": [], "guarded": []}
    try:
        await _turn(guarded, token, 1)
        for _ in range(TURNS):
            turns["bare"].append(await _turn(bare, token, REQUESTS))
            turns["guarded"].append(await _turn(guarded, token, REQUESTS))
    finally:
        await gatekeeper.close()
    return min(turns["bare"]), min(turns["guarded"])


async def _turn(app: App, token: str, requests: int) -> float:
    statuses = set()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.add(message["status"])

    began = time.perf_counter()
    for _ in range(requests):
        await app(_scope(token), receive, send)
    seconds = time.perf_counter() - began
    assert statuses == {200}, statuses
    return seconds / requests


def _scope(token: str) -> Message:
    """As uvicorn makes it for a usual client."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "https",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"api.example"),
            (b"accept", b"*/*"),
            (b"accept-encoding", b"gzip, deflate"),
            (b"connection", b"keep-alive"),
            (b"user-agent", b"python-httpx/0.28.1"),
            (b"authorization", b"Bearer " + token.encode()),
        ],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
