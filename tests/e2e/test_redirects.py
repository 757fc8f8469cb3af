"""Downloads that do not pass through the gateway: real gateway, real ASGI and WSGI servers, curl and httpx.

The design document: "If the APIserver redirects - if it wants to do auth, then it needs to attach a header or parameter
to the redirected request proving that the action was authorized. A special case of this is where the header/parameter
is an Oauth token scoped to allow just that action." S69.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import subprocess
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

import ostiary_gateway.middleware.asgi
import ostiary_gateway.middleware.wsgi
from ostiary_gateway.issuer.keys import SigningKey
from ostiary_gateway.middleware import Access, SyncGatekeeper
from ostiary_gateway.wire.action_token import PARAMETER, TYPE
from tests.e2e.test_backend import narrowed, sign_out
from tests.support.backend import WEBHOOKS, ServedApi, asgi_server, prepare, write_backend, wsgi_server
from tests.support.gateway import SECONDS, ServedGateway, Site, role
from tests.support.ports import free_port
from tests.support.socket_server import SocketServer
from tests.support.waiting import until

pytestmark = pytest.mark.needs("curl")

MEGABYTES = 50
CLUSTER = "https://cluster.example"


class CountingRelay(SocketServer):
    """Carries connections to the server at *target_port*. `carried` are the bytes of both directions."""

    def __init__(self, target_port: int) -> None:
        super().__init__()
        self._target_port = target_port
        self._lock = threading.Lock()
        self.carried = 0

    def serve(self, connection: socket.socket) -> None:
        with connection, socket.create_connection(("127.0.0.1", self._target_port)) as server:
            back = threading.Thread(target=self._carry, args=(server, connection), daemon=True)
            back.start()
            self._carry(connection, server)
            back.join()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    self.carried += len(data)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@dataclass
class Backends:
    """The API at its two public addresses, and what the gateway itself has forwarded."""

    gateway: ServedGateway
    asgi: ServedApi
    wsgi: ServedApi
    key: SigningKey
    forwarded: list[tuple[str, str, str]] = field(default_factory=list)

    def redirect(self, path: str, token: str, method: str = "GET", **options: Any) -> httpx.Response:
        with self.gateway.http(token) as http:
            return http.request(method, path, **options)

    def location(self, path: str, token: str, method: str = "GET") -> str:
        answer = self.redirect(path, token, method)
        assert answer.status_code == 307, answer.text
        return answer.headers["Location"]

    def follow(self, location: str, method: str = "GET", **options: Any) -> httpx.Response:
        """Go where the gateway has sent us, without any other credential."""
        with httpx.Client(verify=self.gateway.trust, trust_env=False, timeout=SECONDS) as http:
            return http.request(method, location, **options)

    def resigned(self, location: str, kind: str = TYPE, **changes: Any) -> str:
        """*location* with a proof that says something else, signed by the gateway's own key."""
        url, _, token = location.partition(f"{PARAMETER}=")
        claims = {**claims_of(token), **changes}
        return f"{url}{PARAMETER}={self.key.sign(claims, kind=kind)}"


def claims_of(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    said: dict[str, Any] = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return said


def proof_of(location: str) -> str:
    return location.partition(f"{PARAMETER}=")[2]


def starlette_app(download: Path) -> Starlette:
    async def big(request: Request) -> Response:
        return FileResponse(download, headers={"X-User": request.user.username})

    async def seen(request: Request) -> Response:
        shown = {
            "user": request.user.username,
            "groups": list(request.user.groups),
            "query": request.url.query,
            "authorization": request.headers.get("authorization"),
            "verb": request.scope["ostiary"].info.verb,
        }
        return JSONResponse(shown)

    async def more(request: Request) -> Response:
        access: Access = request.scope["ostiary"]
        await access.require("get", path="/files/download/seen")
        return JSONResponse({})

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    return Starlette(
        routes=[
            Route("/files/download/big", big),
            Route("/files/download/more", more),
            Route("/files/download/{name:path}", seen, methods=["GET", "POST"]),
            WebSocketRoute("/files/download/{name}", socket),
            Route("/files/admin", seen),
        ]
    )


def wsgi_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    shown = {
        "user": environ["ostiary.user"].username,
        "query": environ["QUERY_STRING"],
        "path": environ["PATH_INFO"],
        "authorization": environ.get("HTTP_AUTHORIZATION"),
    }
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(shown).encode()]


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backends]:
    site = Site(tmp_path_factory.mktemp("redirects"), trustme.CA())
    site.users("alice", "bob", "carol")
    many = [f"a-group-with-a-long-name-{number:04}" for number in range(200)]
    site.groups({"dev": ["alice"], **{group: ["carol"] for group in many}})
    prepare(site)
    downloads = {"nonResourceURLs": ["/files/*", "/archive/*"], "verbs": ["get", "head", "post"]}
    # Only groups that a policy names are in a session.
    impersonate = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}
    site.policy(
        role("", downloads, impersonate, Group="dev"),
        role("", downloads, User="dave"),
        *(role("", downloads, Group=group) for group in many),
    )
    key = SigningKey.generate()
    (site.folder / "key.pem").write_bytes(key.pem())
    download = site.folder / "download"
    download.write_bytes(b"".join(hashlib.sha256(b"%d" % number).digest() * 32768 for number in range(MEGABYTES)))
    gateway_port, asgi_port, wsgi_port = free_port(), free_port(), free_port()

    forwarded: list[tuple[str, str, str]] = []

    def behind_the_gateway(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        """The same API at the address that only the gateway reaches."""
        forwarded.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"forwarded"]

    inside = make_server("127.0.0.1", 0, behind_the_gateway, handler_class=_Quiet)
    thread = threading.Thread(target=inside.serve_forever)
    thread.start()
    server = f"http://127.0.0.1:{inside.server_port}"
    sections: dict[str, Any] = {
        "listen": {"address": f"127.0.0.1:{gateway_port}"},
        "externalURL": f"https://localhost:{gateway_port}",
        "issuer": {"audiences": [CLUSTER], "keys": {"files": ["key.pem"]}},
        "webhooks": WEBHOOKS,
        "groups": [{"name": "file", "type": "file", "path": "groups.yaml"}],
        "upstreams": [
            {
                "name": "files",
                "prefix": "/files",
                "server": server,
                "attributes": "http",
                "redirect": {"to": f"https://localhost:{asgi_port}", "paths": ["/files/download/"]},
            },
            {
                "name": "archive",
                "prefix": "/archive",
                "stripPrefix": True,
                "server": server,
                "attributes": "http",
                "redirect": {"to": f"https://localhost:{wsgi_port}", "paths": ["/archive/"], "lifetime": "30s"},
            },
        ],
    }
    try:
        with site.serving(**sections) as gateway:
            audit = {"log": {"path": "backend-audit.log"}}
            asgi_config = write_backend(gateway, actions={"origin": f"https://localhost:{asgi_port}"}, audit=audit)
            wsgi_config = write_backend(gateway, actions={"origin": f"https://LOCALHOST:{wsgi_port}/"})
            asgi_api = starlette_app(download)
            asgi_api.add_middleware(ostiary_gateway.middleware.asgi.GatekeeperMiddleware, gatekeeper=asgi_config)
            with (
                SyncGatekeeper.from_file(wsgi_config) as gatekeeper,
                asgi_server(site, asgi_api, port=asgi_port) as first,
                wsgi_server(
                    site, ostiary_gateway.middleware.wsgi.GatekeeperMiddleware(wsgi_app, gatekeeper), port=wsgi_port
                ) as second,
            ):
                yield Backends(gateway, first, second, key, forwarded)
    finally:
        inside.shutdown()
        inside.server_close()
        thread.join(SECONDS)


@pytest.fixture(scope="module")
def alice(backends: Backends) -> str:
    return backends.gateway.login("alice").token


class TestDownload:
    """S69."""

    def test_curl_downloads_and_the_bytes_do_not_pass_through_the_gateway(
        self, backends: Backends, alice: str, tmp_path: Path
    ) -> None:
        site = backends.gateway.site
        before = len(backends.forwarded)
        with CountingRelay(backends.gateway.port) as relay:
            subprocess.run(
                [
                    *(
                        "curl",
                        "--silent",
                        "--show-error",
                        "--fail",
                        "--location",
                        "--cacert",
                        str(site.folder / "ca.pem"),
                    ),
                    *("--header", f"Authorization: Bearer {alice}", "--output", str(tmp_path / "big")),
                    f"https://localhost:{relay.port}/files/download/big",
                ],
                check=True,
                timeout=120,
            )
        assert (tmp_path / "big").read_bytes() == (site.folder / "download").read_bytes()
        assert (tmp_path / "big").stat().st_size == MEGABYTES * 2**20
        # A handshake, a request, and an answer of some hundred bytes.
        assert relay.carried < 20_000
        assert len(backends.forwarded) == before

    def test_the_redirect_is_kept_and_told_by_nobody(self, backends: Backends, alice: str) -> None:
        answer = backends.redirect("/files/download/a?x=1&y=%20", alice)
        origin = f"https://localhost:{backends.asgi.port}"
        assert (answer.status_code, answer.content) == (307, b"")
        assert answer.headers["Location"].startswith(f"{origin}/files/download/a?x=1&y=%20&{PARAMETER}=")
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        claims = claims_of(proof_of(answer.headers["Location"]))
        assert (claims["aud"], claims["sub"], claims["method"]) == ([origin], "alice", "GET")
        assert claims["jti"] == answer.headers["Audit-Id"]
        assert claims["exp"] - claims["iat"] == 60

    def test_the_view_sees_the_user_and_the_request_as_it_was(self, backends: Backends, alice: str) -> None:
        answer = backends.follow(backends.location("/files/download/a%20b?x=1&x=2", alice))
        assert answer.json() == {
            "user": "alice",
            "groups": ["dev"],
            "query": "x=1&x=2",
            "authorization": None,
            "verb": "get",
        }
        assert answer.headers["Cache-Control"] == "private"

    def test_wsgi_and_a_stripped_prefix(self, backends: Backends, alice: str) -> None:
        location = backends.location("/archive/2024/%C3%A9?q=a%2Bb", alice)
        assert urlsplit(location).path == "/2024/%C3%A9"
        answer = backends.follow(location)
        assert (answer.json()["user"], answer.json()["query"], answer.json()["authorization"]) == (
            "alice",
            "q=a%2Bb",
            None,
        )
        assert answer.headers["Cache-Control"] == "private"

    def test_httpx_follows_and_head_and_ranges_work(self, backends: Backends, alice: str) -> None:
        with backends.gateway.http(alice, follow_redirects=True) as http:
            head = http.head("/files/download/big")
            part = http.get("/files/download/big", headers={"Range": "bytes=1000-1099"})
        assert (head.status_code, head.headers["Content-Length"]) == (200, str(MEGABYTES * 2**20))
        assert (part.status_code, len(part.content)) == (206, 100)
        assert "authorization" not in part.request.headers

    def test_a_download_that_was_cut_off_goes_on_with_the_same_proof(self, backends: Backends, alice: str) -> None:
        location = backends.location("/files/download/big", alice)
        for first in (0, 5000):
            assert backends.follow(location, headers={"Range": f"bytes={first}-{first + 9}"}).status_code == 206

    def test_a_client_that_keeps_its_token_is_judged_by_the_proof_alone(self, backends: Backends, alice: str) -> None:
        bob = backends.gateway.login("bob").token
        location = backends.location("/files/download/a", alice)
        kept = backends.follow(location, headers={"Authorization": f"Bearer {bob}"})
        assert (kept.json()["user"], kept.json()["authorization"]) == ("alice", None)
        in_wsgi = backends.follow(backends.location("/archive/a", alice), headers={"Authorization": f"Bearer {bob}"})
        assert (in_wsgi.json()["user"], in_wsgi.json()["authorization"]) == ("alice", None)
        # Nor does a good token help a bad proof, not even one that is remembered.
        assert backends.asgi.get("/files/download/a", alice).status_code == 200
        assert backends.follow(location[:-4] + "AAAA", headers={"Authorization": f"Bearer {alice}"}).status_code == 401

    def test_a_narrowed_token_downloads_what_is_in_its_scope(self, backends: Backends, alice: str) -> None:
        token = narrowed(backends.gateway, alice, "get /files/download/a")
        assert backends.follow(backends.location("/files/download/a", token)).status_code == 200
        assert backends.redirect("/files/download/b", token).status_code == 403


class TestForwarded:
    """S69: what is not redirected is proxied, as before."""

    def test_other_methods_bodies_and_paths_are_forwarded(self, backends: Backends, alice: str) -> None:
        assert backends.redirect("/files/other", alice).text == "forwarded"
        assert backends.redirect("/files/download", alice).text == "forwarded"
        assert backends.redirect("/files/download/a", alice, "POST", content=b"x").text == "forwarded"
        assert backends.redirect("/files/download/a", alice, "GET", content=b"x").text == "forwarded"

    def test_a_path_in_an_unusual_encoding_is_forwarded(self, backends: Backends, alice: str) -> None:
        """A WSGI server hands it over decoded, and nobody could tell how it was written."""
        assert raw_status(backends.gateway, b"GET /files/download/%c3%a9", alice) == 200
        assert backends.forwarded[-1][1].startswith("/files/download/")

    def test_a_user_with_very_many_groups_is_served_all_the_same(self, backends: Backends) -> None:
        carol = backends.gateway.login("carol").token
        assert backends.redirect("/files/download/a", carol).text == "forwarded"

    def test_who_asks_in_the_name_of_another_is_forwarded(self, backends: Backends, alice: str) -> None:
        answer = backends.redirect("/files/download/a", alice, headers={"Impersonate-User": "dave"})
        assert (answer.status_code, answer.text) == (200, "forwarded")

    def test_what_the_policy_refuses_is_not_redirected(self, backends: Backends) -> None:
        bob = backends.gateway.login("bob").token
        refused = backends.redirect("/files/download/a", bob)
        assert (refused.status_code, refused.headers.get("Location")) == (403, None)
        assert backends.gateway.get("/files/download/a").status_code == 401


def raw_status(gateway: ServedGateway, line: bytes, token: str, host: bytes = b"localhost") -> int:
    return int(raw_answer(gateway, line, token, host).split(b" ")[1])


def raw_answer(gateway: ServedGateway, line: bytes, token: str, host: bytes = b"localhost") -> bytes:
    head = b"%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n"
    with gateway.connect() as connection:
        connection.sendall(head % (line, host, token.encode()))
        answer = b""
        while data := connection.recv(65536):
            answer += data
    return answer


class TestAttacks:
    """S69: the proof is for one action, and nothing but the configured origin is redirected to."""

    def test_no_request_leads_elsewhere(self, backends: Backends, alice: str, subtests: pytest.Subtests) -> None:
        cases = [
            (b"GET /files/download/a", b"evil.example"),
            (b"GET /files/download/a", b"evil.example@localhost"),
            (b"GET https://evil.example/files/download/a", b"evil.example"),
            (b"GET https://evil.example/files/download/a", b"localhost"),
            (b"GET //evil.example/files/download/a", b"localhost"),
            (b"GET /files/download//evil.example", b"localhost"),
            (b"GET /files/download/\\evil.example", b"localhost"),
            (b"GET /files/download/a@evil.example", b"localhost"),
            (b"GET /files/download/a%0d%0aLocation:%20https://evil.example", b"localhost"),
        ]
        for line, host in cases:
            with subtests.test(line=line, host=host):
                answer = raw_answer(backends.gateway, line, alice, host)
                locations = [row for row in answer.split(b"\r\n") if row.lower().startswith(b"location:")]
                origin = b"Location: https://localhost:%d/files/download/" % backends.asgi.port
                assert all(row.startswith(origin) for row in locations)
                assert len(locations) == (1 if b" 307 " in answer else 0)

    @pytest.mark.parametrize("name", [PARAMETER, PARAMETER.replace("_", "%5F"), "%6fstiary_action_token"])
    def test_the_parameter_cannot_be_smuggled_in(self, backends: Backends, alice: str, name: str) -> None:
        before = len(backends.forwarded)
        answer = raw_answer(backends.gateway, f"GET /files/download/a?x=1&{name}=y".encode(), alice)
        assert b" 400 " in answer.splitlines()[0]
        assert raw_status(backends.gateway, f"GET /files/other?{name}=y".encode(), alice) == 400
        assert len(backends.forwarded) == before

    def test_it_is_for_no_other_request(self, backends: Backends, alice: str) -> None:
        location = backends.location("/files/download/a?x=1", alice)
        other_path = location.replace("/files/download/a", "/files/admin")
        assert backends.follow(location).status_code == 200
        assert backends.follow(other_path).status_code == 401
        assert backends.follow(location.replace("x=1", "x=2")).status_code == 401
        assert backends.follow(location.replace("x=1&", "")).status_code == 401
        assert backends.follow(location + "&x=2").status_code == 401
        assert backends.follow(location, "HEAD").status_code == 401
        assert backends.follow(location, "POST").status_code == 401
        assert backends.follow(location, "GET", content=b"a body").status_code == 401
        assert backends.follow(f"{location}&{PARAMETER}={proof_of(location)}").status_code == 400
        assert backends.follow(location, headers={"Host": "elsewhere.example"}).status_code == 401

    def test_it_is_for_no_other_backend(self, backends: Backends, alice: str) -> None:
        """Not even for the same path there."""
        location = backends.location("/archive/files/download/a", alice)
        elsewhere = location.replace(f":{backends.wsgi.port}/", f":{backends.asgi.port}/")
        assert backends.follow(location).status_code == 200
        assert backends.follow(elsewhere).status_code == 401
        as_if = {"Host": f"localhost:{backends.wsgi.port}"}
        assert backends.follow(elsewhere, headers=as_if).status_code == 401

    def test_it_ends_soon(self, backends: Backends, alice: str) -> None:
        location = backends.location("/files/download/a", alice)
        now = int(time.time())
        # Clocks may differ by a little, and a busy machine takes its time.
        until(lambda: backends.follow(backends.resigned(location, exp=int(time.time()) - 1)).status_code == 200)
        assert backends.follow(backends.resigned(location, exp=now - 60)).status_code == 401
        assert backends.follow(backends.resigned(location, nbf=now + 600)).status_code == 401

    def test_what_is_tampered_with_is_nothing(self, backends: Backends, alice: str) -> None:
        location = backends.location("/files/download/a", alice)
        head, body, signature = proof_of(location).split(".")
        for forged in (
            f"{head}.{body}.{'A' * len(signature)}",
            f"{head}.{body}.",
            f"{head}.{body}",
            "",
            "x",
            "a.b.c",
            SigningKey.generate().sign(claims_of(proof_of(location)), kind=TYPE),
            "eyJhbGciOiJub25lIn0." + body + ".",
        ):
            assert backends.follow(location.replace(proof_of(location), forged)).status_code == 401, forged

    def test_a_proof_without_its_claims_is_none(
        self, backends: Backends, alice: str, subtests: pytest.Subtests
    ) -> None:
        cases: list[dict[str, Any]] = [
            {"iss": "https://other.example"},
            {"aud": ["files"]},
            {"aud": [CLUSTER]},
            {"method": "POST"},
            {"method": None},
            {"url": None},
            {"cid": None},
            {"sid": None},
            {"sequence": None},
            {"username": ""},
            {"exp": None},
            {"extra": {"key": "text"}},
        ]
        for changes in cases:
            with subtests.test(changes=changes):
                location = backends.location("/files/download/a", alice)
                assert backends.follow(backends.resigned(location)).status_code == 200
                assert backends.follow(backends.resigned(location, **changes)).status_code == 401

    def test_no_other_jwt_of_the_issuer_is_a_proof(self, backends: Backends, alice: str) -> None:
        """An assertion and an access JWT have the type JWT."""
        location = backends.location("/files/download/a", alice)
        for kind in ("JWT", "at+jwt", "ostiary-action"):
            assert backends.follow(backends.resigned(location, kind=kind)).status_code == 401

    def test_it_is_no_bearer_token_anywhere(self, backends: Backends, alice: str) -> None:
        location = backends.location("/files/download/a", alice)
        proof = proof_of(location)
        as_bearer = {"Authorization": f"Bearer {proof}"}
        plain = location.partition("?")[0]
        assert backends.follow(plain, headers=as_bearer).status_code == 401
        assert backends.follow(plain, headers={"X-Ostiary-Assertion": proof}).status_code == 401
        assert backends.gateway.get("/files/download/a", proof).status_code == 401
        # Nor where JWTs of the issuer for the very same audience are accepted.
        origin = f"https://localhost:{backends.asgi.port}"
        config = write_backend(backends.gateway, jwt={"audiences": [origin]})
        app = ostiary_gateway.middleware.asgi.GatekeeperMiddleware(starlette_app(config), config)
        with asgi_server(backends.gateway.site, app) as other:
            assert other.get("/files/download/a", proof).status_code == 401
            # And where nothing was said about redirects, the parameter is one like any other.
            assert other.get(f"/files/download/a?{PARAMETER}={proof}").status_code == 401

    def test_a_view_cannot_ask_for_more(self, backends: Backends, alice: str) -> None:
        """Not even for what the user may do: the gateway has allowed one action."""
        refused = backends.follow(backends.location("/files/download/more", alice))
        assert (refused.status_code, "beyond this token's scope" in refused.json()["message"]) == (403, True)

    def test_a_websocket_is_no_download(self, backends: Backends, alice: str) -> None:
        location = urlsplit(backends.location("/files/download/a", alice))
        key = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        answer = backends.follow(location.geturl(), headers={**key, "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="})
        assert answer.status_code in (401, 403)

    def test_who_signs_out_meanwhile_downloads_nothing(self, backends: Backends) -> None:
        """T3."""
        token = backends.gateway.login("alice").token
        locations = [backends.location(path, token) for path in ("/files/download/a", "/archive/a")]
        assert [backends.follow(location).status_code for location in locations] == [200, 200]
        sign_out(backends.gateway, token)
        for location in locations:
            until(lambda location=location: backends.follow(location).status_code == 401)  # type: ignore[misc]


class TestRecords:
    def test_the_events_say_where_to_and_no_log_has_the_proof(
        self, backends: Backends, alice: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """S69, S70. Not even the access log of the server."""
        site = backends.gateway.site
        with caplog.at_level(logging.DEBUG):
            redirect = backends.redirect("/files/download/audited?x=1", alice)
            location = redirect.headers["Location"]
            assert backends.follow(location).status_code == 200
            assert backends.follow(location + "x").status_code == 401
            assert backends.follow(f"{location}&{PARAMETER}=again").status_code == 400
            raw_answer(backends.gateway, f"GET /files/other?{PARAMETER}={proof_of(location)}".encode(), alice)
        log = site.folder / "backend-audit.log"
        # Both are written in the background.
        until(lambda: bool(backends.follow(location)) and "download/audited" in log.read_text())
        until(lambda: bool(backends.follow(location)) and redirect.headers["Audit-Id"] in site.audit_log.read_text())
        event = next(each for each in site.events() if each["auditID"] == redirect.headers["Audit-Id"])
        assert event["responseStatus"]["code"] == 307
        assert event["responseStatus"]["message"] == f"redirected to https://localhost:{backends.asgi.port}"
        assert event["requestURI"] == "/files/download/audited?x=1"
        at_backend = log.read_text()
        seen = next(json.loads(line) for line in at_backend.splitlines() if "download/audited" in line)
        assert seen["requestURI"] == "/files/download/audited?x=1"
        assert redirect.headers["Audit-Id"] in str(seen["annotations"])
        assert [record for record in caplog.records if record.name == "uvicorn.access"]
        payload = proof_of(location).split(".")[1]
        logged = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
        said = [*logged, at_backend, site.audit_log.read_text(), *backends.gateway.lines]
        assert not [text for text in said if payload in text]
