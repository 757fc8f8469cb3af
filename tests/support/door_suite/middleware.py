"""The middlewares of ASGI and WSGI as doors: real servers, before applications that say what they got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from ostiary.model import UserInfo
from ostiary_gateway.config.provider import Authorization
from ostiary_gateway.middleware import Gatekeeper, SyncGatekeeper
from ostiary_gateway.middleware.asgi import GatekeeperMiddleware as AsgiMiddleware
from ostiary_gateway.middleware.config import load
from ostiary_gateway.middleware.wsgi import GatekeeperMiddleware as WsgiMiddleware
from tests.support.backend import asgi_server, write_backend, wsgi_server
from tests.support.door_cases import Case
from tests.support.door_suite.drivers import ask
from tests.support.door_suite.outcome import HUNG_UP, Arrived, Outcome
from tests.support.door_suite.policy import ATTRIBUTES, EXTRA, Rules
from tests.support.doors import Client
from tests.support.gateway import Gateway

# As the gateway of the suite has it; the rules of the test take the place of the chain.
AUTHORIZATION: dict[str, Any] = {"chain": [{"name": "all", "type": "allow_all"}], "hideDenied": True}


class MiddlewareDoor:
    """An application for each upstream, each with a server of its own; *seen* is what they got, by case."""

    def __init__(
        self, name: str, clients: Mapping[str, Client], seen: dict[str, Arrived], tokens: Mapping[str, str]
    ) -> None:
        self.name = name
        self._clients, self._seen, self._tokens = clients, seen, tokens

    def send(self, case: Case) -> Outcome:
        self._seen.pop(case.name, None)
        token = None if case.user is None else self._tokens[case.user]
        client = self._clients[case.upstream]
        reply = ask(client, case.request(token), head_only=case.method == "HEAD", alone=case.alone)
        return Outcome(HUNG_UP if reply is None else reply.status, self._seen.get(case.name), reply)


@contextmanager
def middleware_doors(gateway: Gateway, rules: Rules, tokens: Mapping[str, str]) -> Iterator[list[MiddlewareDoor]]:
    """Both, with the policy of *rules*, and the tokens of *gateway*."""
    with ExitStack() as stack:
        asgi_seen: dict[str, Arrived] = {}
        wsgi_seen: dict[str, Arrived] = {}
        asgi_clients, wsgi_clients = {}, {}
        for upstream, attributes in ATTRIBUTES.items():
            path = write_backend(gateway, upstream=upstream, attributes=attributes, authorization=AUTHORIZATION)
            asgi = AsgiMiddleware(_asgi_echo(upstream, asgi_seen), _gatekeeper(path, rules))
            served = stack.enter_context(asgi_server(gateway.site, asgi))
            asgi_clients[upstream] = Client(served.port, gateway.trust)
            for_threads = stack.enter_context(SyncGatekeeper(partial(_gatekeeper, path, rules)))
            wsgi = WsgiMiddleware(_wsgi_echo(upstream, wsgi_seen), for_threads)
            served = stack.enter_context(wsgi_server(gateway.site, wsgi))
            wsgi_clients[upstream] = Client(served.port, gateway.trust)
        for client in (*asgi_clients.values(), *wsgi_clients.values()):
            stack.callback(client.close)
        yield [
            MiddlewareDoor("asgi", asgi_clients, asgi_seen, tokens),
            MiddlewareDoor("wsgi", wsgi_clients, wsgi_seen, tokens),
        ]


def _gatekeeper(path: Path, rules: Rules) -> Gatekeeper:
    config = load(path)
    chain = (Authorization("rules", "rules", rules),)
    return Gatekeeper(replace(config, authorization=replace(config.authorization, chain=chain)))


def _asgi_echo(upstream: str, seen: dict[str, Arrived]) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        _note(seen, upstream, scope["user"], scope["method"], target.decode("latin-1"), headers, body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return application


def _wsgi_echo(upstream: str, seen: dict[str, Arrived]) -> Callable[..., list[bytes]]:
    def application(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
        length = environ.get("CONTENT_LENGTH") or "0"
        if not length.isdigit() or len(length) > 9:
            # As every framework does.
            start_response("400 Bad Request", [("Content-Length", "0")])
            return []
        body = environ["wsgi.input"].read(int(length))
        # An application routes by the decoded path; encoded again, it can be compared with what was sent.
        target = quote_from_bytes(environ["PATH_INFO"].encode("latin-1"), safe="/-._~!$&'()*+,=:@")
        if environ["QUERY_STRING"]:
            target += f"?{environ['QUERY_STRING']}"
        headers = [
            (name[5:].replace("_", "-").lower(), value) for name, value in environ.items() if name.startswith("HTTP_")
        ]
        _note(seen, upstream, environ["ostiary.user"], environ["REQUEST_METHOD"], target, headers, body)
        start_response("200 OK", [("Content-Length", "0")])
        return []

    return application


def _note(
    seen: dict[str, Arrived],
    upstream: str,
    user: UserInfo,
    method: str,
    target: str,
    headers: list[tuple[str, str]],
    body: bytes,
) -> None:
    case = next((value for name, value in headers if name == "x-case"), "")
    # An application sees the tokens of its users, as every API does.
    others = tuple((name, value) for name, value in headers if name != "authorization")
    told = (user.username,), user.uid, user.groups, dict(user.extra).get(EXTRA, ())
    seen[case] = Arrived(*told, method, target, upstream, others, body)
