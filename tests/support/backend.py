"""A Python API that checks tokens and policy itself: its ``backend.yaml``, and servers for ASGI and WSGI, with TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import httpx
import uvicorn

from tests.support.gateway import SECONDS, Gateway, Site
from tests.support.serving import serving

_numbers = count()
CALLER = "token-of-the-backends"
# What a gateway needs so that backends may ask it.
WEBHOOKS: dict[str, Any] = {
    "introspection": True,
    "subjectAccessReview": True,
    "callers": {"tokenFile": "caller-token"},
}


def prepare(site: Site) -> None:
    """The token by which backends and the gateway know each other."""
    (site.folder / "caller-token").write_text(CALLER)


def backend_settings(gateway: Gateway, /, **sections: Any) -> dict[str, Any]:
    """What stands in a ``backend.yaml`` for *gateway*; each of *sections* takes the place of what stands here."""
    asked = {
        "server": gateway.url(),
        "tokenFile": "caller-token",
        "tls": {"ca": "ca.pem"},
        **sections.pop("gateway", {}),
    }
    return {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Backend",
        "gateway": asked,
        "authorization": {"chain": [{"name": "policy", "type": "rbac", "paths": ["policy"]}]},
        **sections,
    }


def write_backend(gateway: Gateway, /, **sections: Any) -> Path:
    path = gateway.site.folder / f"backend-{next(_numbers)}.yaml"
    settings = {key: value for key, value in backend_settings(gateway, **sections).items() if value is not None}
    path.write_text(json.dumps(settings))
    return path


class ServedApi:
    """An API that is served at *port*; a client trusts the authority of the site."""

    def __init__(self, site: Site, port: int) -> None:
        self.port = port
        self._trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        site.ca.configure_trust(self._trust)

    def ask(self, method: str, target: str, token: str | None = None, **options: Any) -> httpx.Response:
        headers = [*options.pop("headers", ())]
        if token is not None:
            headers.append(("Authorization", f"Bearer {token}"))
        with httpx.Client(verify=self._trust, trust_env=False, timeout=SECONDS) as http:
            return http.request(method, f"https://localhost:{self.port}{target}", headers=headers, **options)

    def get(self, target: str, token: str | None = None, **options: Any) -> httpx.Response:
        return self.ask("GET", target, token, **options)


class _Uvicorn(uvicorn.Server):
    """Tells when it has begun to serve."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@contextmanager
def asgi_server(site: Site, app: Any, *, port: int = 0, **options: Any) -> Iterator[ServedApi]:
    """*app* behind uvicorn, in a thread."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        ssl_certfile=str(site.folder / "server.pem"),
        ssl_keyfile=str(site.folder / "server.key"),
        log_config=None,
        **options,
    )
    server = _Uvicorn(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="uvicorn")
    thread.start()
    try:
        assert server.is_up.wait(SECONDS)
        yield ServedApi(site, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def wsgi_server(site: Site, app: Callable[..., Any], *, port: int = 0) -> Iterator[ServedApi]:
    """*app* behind the server of the standard library, a thread for each request."""
    server = make_server("127.0.0.1", port, app, server_class=_ThreadingServer, handler_class=_Quiet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.folder / "server.pem", site.folder / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield ServedApi(site, server.server_port)
