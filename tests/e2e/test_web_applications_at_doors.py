"""Web applications behind other proxies, in a real browser: sign-in and back, sign-out, revocation, attacks.

Every proxy runs exactly what ``ostiary-gateway door`` prints. TLS ends before it, as at a load balancer. All of them
ask one gateway, and carry requests to the same two applications.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from ostiary_gateway.interfaces.token_store import RevocationKind
from tests.e2e.test_web_applications import FETCH, OPEN_SOCKET, allowing
from tests.support.chromium import Chromium
from tests.support.doors import Client, Reply, printed, running
from tests.support.gateway import SECONDS, InProcessGateway, Site, password
from tests.support.gateway_api import envoy_for_routes
from tests.support.ports import free_port
from tests.support.web_application import WebApplication

pytestmark = [pytest.mark.needs("chromium", "node", "npm", "nginx"), pytest.mark.timeout(300)]

PROXIES = ("nginx", "traefik", "caddy", "envoy", "gateway-api")
EVERYWHERE = pytest.mark.parametrize("proxy", PROXIES)
# Of the two kinds: one that needs error pages for everything, and one that passes what it is told.
ATTACKED = pytest.mark.parametrize("proxy", ["nginx", "traefik"])
WIKI, BOARD = "wiki.apps.localhost", "board.apps.localhost"
PAGE = (("Accept", "text/html"),)
COOKIE = re.compile(r"(__Host-ostiary-[a-z-]+)=([^;]*)")


@contextmanager
def tls_relay(certificate: Path, key: Path, port: int, *, to: int, source: str) -> Iterator[None]:
    """Listens at *port*; the proxy sees *source* as the address of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    relay = _Relay(context, port, to, source)
    thread = threading.Thread(target=lambda: asyncio.run(relay.run()), name="tls relay", daemon=True)
    thread.start()
    assert relay.listens.wait(SECONDS)
    try:
        yield
    finally:
        relay.loop.call_soon_threadsafe(relay.stop.set)
        thread.join(SECONDS)
        assert not thread.is_alive()


class _Relay:
    def __init__(self, context: ssl.SSLContext, port: int, to: int, source: str) -> None:
        self._context, self._port, self._to, self._source = context, port, to, source
        self._open: set[asyncio.Task[None]] = set()
        self.listens = threading.Event()
        self.loop: asyncio.AbstractEventLoop
        self.stop: asyncio.Event

    async def run(self) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", self._port, ssl=self._context)
        self.listens.set()
        await self.stop.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        with suppress(OSError, asyncio.CancelledError):
            inner_reader, inner_writer = await asyncio.open_connection(
                "127.0.0.1", self._to, local_addr=(self._source, 0)
            )
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends; then the other ends, too."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@dataclass
class Doors:
    """`ports` are those at which browsers find the applications behind each proxy."""

    gateway: InProcessGateway
    chromium: Chromium
    wiki: WebApplication
    board: WebApplication
    trust: ssl.SSLContext
    url: str
    ports: dict[str, int]
    carol: httpx.Client
    """The browser of somebody who is signed in at the gateway."""
    addresses: Iterator[str] = field(default_factory=lambda: (f"192.0.2.{number}" for number in range(1, 255)))

    def person(self) -> None:
        """Somebody else, at another address: one alone must not begin so often."""
        self.chromium.person(extraHTTPHeaders={"X-Forwarded-For": next(self.addresses)})

    def at(self, proxy: str, path: str = "/", host: str = WIKI) -> str:
        return f"https://{host}:{self.ports[proxy]}{path}"

    def sign_in(self, proxy: str, path: str = "/", user: str = "alice") -> None:
        self.person()
        self.chromium.go(self.at(proxy, path))
        assert self.chromium.url.startswith(f"{self.url}/auth/application?request=")
        self.chromium.fill("Name", user)
        self.chromium.fill("Password", password(user))
        self.chromium.click("button", "Sign in")

    def run(self, script: str) -> Any:
        return self.chromium("run", script=script)

    # --- without a browser ---

    def send(
        self,
        proxy: str,
        target: str = "/",
        *headers: tuple[str, str],
        method: str = "GET",
        host: str | None = None,
    ) -> Reply:
        """Bytes as they are written here."""
        lines = [("Host", host or f"{WIKI}:{self.ports[proxy]}"), *headers]
        text = "".join(f"{name}: {value}\r\n" for name, value in lines)
        client = Client(self.ports[proxy], self.trust)
        try:
            return client.send(f"{method} {target} HTTP/1.1\r\n{text}\r\n".encode("latin-1"))
        finally:
            client.close()

    def begin(self, proxy: str, target: str = "/") -> tuple[str, str]:
        """Where a browser without a session is led, and the cookie that it has from then on."""
        reply = self.send(proxy, target, *PAGE)
        assert reply.status == 303, reply
        return reply.header("Location") or "", cookie_of(reply)

    def code(self, location: str) -> str:
        """Be led on by the gateway, as carol; returns the address that the browser is sent back to."""
        answer = self.carol.get(location, headers={"X-Forwarded-For": next(self.addresses)})
        assert "/auth/application?code=" in answer.headers["Location"], answer.headers
        return str(answer.headers["Location"])

    def session(self, proxy: str, target: str = "/", host: str = WIKI) -> str:
        """A cookie of the application."""
        reply = self.send(proxy, target, *PAGE, host=f"{host}:{self.ports[proxy]}")
        way_back = httpx.URL(self.code(reply.header("Location") or ""))
        arrived = self.send(
            proxy, way_back.raw_path.decode(), *PAGE, ("Cookie", cookie_of(reply)), host=way_back.netloc.decode()
        )
        assert (arrived.status, arrived.header("Location")) == (303, target)
        return cookie_of(arrived)


def targets(application: WebApplication) -> set[str]:
    """What has reached it. Browsers ask for icons on their own, so nothing is counted."""
    return {seen.target for seen in application.seen}


def cookie_of(reply: Reply) -> str:
    (line,) = [value for name, value in reply.headers if name.lower() == "set-cookie"]
    return line.partition(";")[0]


@pytest.fixture(scope="module")
def doors(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    site = Site(folder / "gateway", ca)
    site._write_leaf("server", ca.issue_cert("localhost", "127.0.0.1", WIKI, BOARD))
    site._write("secret", "the-secret-of-this-door")
    site.users("alice", "bob", "carol")
    site.policy(allowing("alice"), allowing("carol"))
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(trust)
    port, ports = free_port(), {proxy: free_port() for proxy in PROXIES}
    with ExitStack() as stack:
        wiki = stack.enter_context(WebApplication("wiki", cookie="theme=dark; Path=/").running())
        board = stack.enter_context(WebApplication("board").running())
        sections: dict[str, Any] = {
            "listen": {"address": f"127.0.0.1:{port}", "trustedProxies": ["127.0.0.1"]},
            "externalURL": f"https://localhost:{port}",
            # Only other proxies carry requests to the one; to the other, the built-in proxy does so, too.
            "upstreams": [application(wiki, public=["/static/"]), application(board) | {"server": board.url}],
            "doors": [
                {"name": proxy, "proxy": proxy, "port": ports[proxy], "callers": {"tokenFile": "secret"}}
                for proxy in PROXIES
            ],
        }
        gateway = stack.enter_context(site.in_process(**sections))
        config = site.write_config(**sections)
        for number, proxy in enumerate(PROXIES):
            inner = free_port()
            where = ("--gateway", gateway.url(), "--ca", str(site.folder / "ca.pem"), "--listen", f"127.0.0.1:{inner}")
            text = printed(proxy, config, *where, "--backend", f"wiki={wiki.url}", "--backend", f"board={board.url}")
            if proxy == "gateway-api":
                text = envoy_for_routes(text, inner, site.folder / "ca.pem")
            stack.enter_context(running(proxy, folder / proxy, text, inner, host=f"{WIKI}:{ports[proxy]}"))
            files = (site.folder / "server.pem", site.folder / "server.key")
            stack.enter_context(tls_relay(*files, ports[proxy], to=inner, source=f"127.0.0.{11 + number}"))
        chromium = stack.enter_context(Chromium.running())
        carol = stack.enter_context(gateway.http(headers=PAGE))
        carol.get("/auth", auth=("carol", password("carol")), follow_redirects=True)
        yield Doors(gateway, chromium, wiki, board, trust, f"https://localhost:{port}", ports, carol)


def application(server: WebApplication, **more: Any) -> dict[str, Any]:
    hosts = [f"{server.name}.apps.localhost"]
    return {"name": server.name, "hosts": hosts, "attributes": "http", "auth": "browser", **more}


# --- in a browser ---


@EVERYWHERE
def test_a_person_signs_in_is_back_at_the_same_page_works_and_signs_out(doors: Doors, proxy: str) -> None:
    """C5: where the person wanted to go is in no address on the way."""
    chromium, wiki = doors.chromium, doors.wiki
    deep = "/pages/42?tab=history&q=a%20b"
    doors.person()
    chromium.go(doors.at(proxy, deep))
    assert "pages" not in chromium.url
    doors.sign_in(proxy, deep)
    assert chromium.url == doors.at(proxy, deep)
    assert wiki.page.target == deep
    assert wiki.page.all("X-Remote-User") == ["alice"]
    # Its own cookie comes along, ours never.
    chromium.go(doors.at(proxy, "/again"))
    assert wiki.page.all("Cookie") == ["theme=dark"]
    chromium.go(doors.at(proxy, "/cards?sort=1", BOARD))
    assert chromium.url == doors.at(proxy, "/cards?sort=1", BOARD), "without a second question"
    chromium.go(doors.at(proxy, "/edit"))
    assert doors.run("return (await fetch('/save', {method: 'POST', body: 'x'})).status") == 200
    assert doors.run(FETCH.format("/data")) == [200, None]
    chromium.click("link", "Leave")
    assert "You are signed out" in chromium.text
    for host in (WIKI, BOARD):
        chromium.go(doors.at(proxy, "/after", host))
        assert chromium.url.startswith(f"{doors.url}/auth/application?request=")
    assert not [seen for seen in (*wiki.seen, *doors.board.seen) if "ostiary" in "".join(seen.all("Cookie"))]
    assert not targets(wiki) & {"/after"}


@EVERYWHERE
def test_a_revoked_session_is_refused_at_once(doors: Doors, proxy: str) -> None:
    doors.sign_in(proxy, "/revoked-later")
    assert doors.run(FETCH.format("/data")) == [200, None]
    tokens = doors.gateway.worker.app.shared.tokens
    doors.gateway.call(lambda: tokens.revoke(RevocationKind.USER, "alice"))
    assert doors.run(FETCH.format("/after-the-end")) == [401, "required"]
    assert doors.run("return (await fetch('/after-the-end', {method: 'POST', body: 'x'})).status") == 401
    assert not targets(doors.wiki) & {"/after-the-end"}
    doors.chromium.go(doors.at(proxy, "/chat"))
    assert doors.chromium.url.startswith(f"{doors.url}/auth/application")


@EVERYWHERE
def test_a_person_without_permission_sees_a_page_that_says_so(doors: Doors, proxy: str) -> None:
    doors.sign_in(proxy, "/secret", "bob")
    chromium = doors.chromium
    assert "You are signed in as bob, and have no permission for this page." in chromium.text
    assert chromium("judged", rules=[]) == []
    assert not [line for line in chromium("problems") if "403" not in line]
    chromium.click("link", "Sign out")
    assert "You are signed out" in chromium.text


@pytest.mark.parametrize("proxy", ["nginx", "traefik", "caddy", "envoy"])
def test_a_websocket_passes_where_the_proxy_can_tell_of_it(doors: Doors, proxy: str) -> None:
    doors.sign_in(proxy, "/chat")
    assert doors.run(OPEN_SOCKET) == "you said: hello"
    doors.chromium.go(doors.at(proxy, "/evil", BOARD))
    url = doors.at(proxy, "/chat").replace("https", "wss")
    opened = doors.run(
        f"const socket = new WebSocket('{url}');"
        "return await new Promise((done) => { socket.onopen = () => done('open'); socket.onerror = () => done('no') })"
    )
    assert opened == "no", "of another application"


@EVERYWHERE
def test_a_page_of_a_sibling_host_cannot_post_with_the_cookie(doors: Doors, proxy: str) -> None:
    doors.sign_in(proxy)
    chromium, wiki = doors.chromium, doors.wiki
    chromium.go(doors.at(proxy, "/evil", BOARD))
    posts = [seen for seen in wiki.seen if seen.method == "POST"]
    url = doors.at(proxy, "/delete")
    doors.run(f"try {{ await fetch('{url}', {{method: 'POST', mode: 'no-cors', credentials: 'include'}}) }} catch {{}}")
    doors.run(
        f"const form = document.createElement('form'); form.method = 'post'; form.action = '{url}';"
        "document.body.append(form); form.submit()"
    )
    chromium.see("The request was sent by a page of another site.")
    assert chromium.url == url
    assert [seen for seen in wiki.seen if seen.method == "POST"] == posts


@EVERYWHERE
def test_what_is_public_needs_no_sign_in_and_has_no_user(doors: Doors, proxy: str) -> None:
    doors.person()
    assert doors.chromium.go(doors.at(proxy, "/static/logo")) == 200
    assert doors.chromium.url == doors.at(proxy, "/static/logo")
    for name in ("X-Remote-User", "X-Remote-Group", "X-Ostiary-Assertion"):
        assert not any(doors.wiki.page.all(name)), name


# --- programs, and attacks ---


@EVERYWHERE
def test_programs_present_tokens_and_get_a_401_as_before(doors: Doors, proxy: str) -> None:
    token = doors.gateway.login("carol").token
    assert doors.send(proxy, "/api", ("Authorization", f"Bearer {token}")).status == 200
    assert doors.wiki.page.all("Authorization") == []
    assert not any(doors.wiki.page.all("Cookie"))
    refused = doors.send(proxy, "/api")
    assert (refused.status, refused.header("X-Ostiary-Sign-In")) == (401, "required")
    assert refused.json()["code"] == 401


@EVERYWHERE
def test_only_the_cookies_of_the_application_itself_reach_it(doors: Doors, proxy: str) -> None:
    cookie = doors.session(proxy)
    for cookies, seen in (
        (cookie, []),
        (f"a=1; {cookie}; b=2", ["a=1; b=2"]),
        (f"{cookie}; __Host-ostiary-session=x; __Host-ostiary-visit=y; theme=dark", ["theme=dark"]),
    ):
        assert doors.send(proxy, "/cookies", ("Cookie", cookies)).status == 200
        got = [value for value in doors.wiki.page.all("Cookie") if value or proxy != "gateway-api"]
        assert [value.replace("; ", ";") for value in got] == [value.replace("; ", ";") for value in seen]
        assert doors.wiki.page.all("X-Ostiary-Cookie") == []
    # On several lines, which is what some clients make of it: whoever is let in, ours stays behind.
    doors.send(proxy, "/lines", ("Cookie", "a=1"), ("Cookie", cookie), ("Cookie", "b=2"))
    assert "ostiary" not in "".join(doors.wiki.page.all("Cookie"))
    claim = ("X-Ostiary-Cookie", "theme=evil")
    if doors.send(proxy, "/claimed", ("Cookie", cookie), claim).status == 200 and proxy != "gateway-api":
        assert "evil" not in "".join(doors.wiki.page.lines)


@EVERYWHERE
def test_a_form_without_a_session_gets_a_page_with_all_that_protects_it(doors: Doors, proxy: str) -> None:
    reply = doors.send(proxy, "/save", *PAGE, ("Content-Length", "0"), method="POST")
    assert reply.status == 401
    assert b"what you sent was not forwarded" in reply.body
    headers = [(name.lower(), value) for name, value in reply.headers]
    for name, value in (
        ("content-type", "text/html; charset=utf-8"),
        ("cache-control", "no-store"),
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
    ):
        assert [said for key, said in headers if key == name] == [value], name
    assert "frame-ancestors 'none'" in (reply.header("Content-Security-Policy") or "")
    assert (reply.header("Audit-Id") or "none").encode() in reply.body


@ATTACKED
def test_no_header_decides_where_a_person_is_led(doors: Doors, proxy: str) -> None:
    evil = ("evil.example", "evil.example:443", f"{WIKI}.evil.example", f"evil.example/{WIKI}")
    for host in evil:
        reply = doors.send(proxy, "/", *PAGE, host=host)
        assert (reply.header("Location"), reply.header("Set-Cookie")) == (None, None), host
        for name in ("X-Forwarded-Host", "X-Original-Host", "X-Host", "Forwarded"):
            reply = doors.send(proxy, "/kept", *PAGE, (name, f"host={host}" if name == "Forwarded" else host))
            assert (reply.header("Location") or doors.url).startswith(doors.url)
            assert reply.status in (303, 400), name
    reply = doors.send(proxy, f"https://{WIKI}:{doors.ports[proxy]}/", *PAGE, host="evil.example")
    assert (reply.header("Location") or doors.url).startswith(doors.url), "Traefik takes the host of the URL"
    for target in ("//evil.example/x", "/\\evil.example", "/%2f%2fevil.example"):
        reply = doors.send(proxy, target, *PAGE)
        # Refused, or one path of the application is made of it.
        location = reply.header("Location") or ""
        if reply.status == 303 and location.startswith(f"{doors.url}/auth/application?request="):
            back = httpx.URL(doors.code(location)).raw_path.decode()
            reply = doors.send(proxy, back, *PAGE, ("Cookie", cookie_of(reply)))
            assert reply.status == 303
        assert not re.match(r"[a-z]*:|[/\\][/\\]", reply.header("Location") or ""), target


@ATTACKED
def test_the_target_is_the_one_that_was_asked_for_whatever_headers_say(doors: Doors, proxy: str) -> None:
    """C5."""
    names = ("X-Forwarded-Uri", "X-Original-URI", "X-Original-URL", "X-Rewrite-URL", "X-Auth-Request-Redirect")
    for name in names:
        reply = doors.send(proxy, "/wanted?a=1", *PAGE, (name, "https://evil.example/stolen"))
        assert reply.status == 303, name
        back = httpx.URL(doors.code(reply.header("Location") or ""))
        arrived = doors.send(proxy, back.raw_path.decode(), *PAGE, ("Cookie", cookie_of(reply)))
        assert (arrived.status, arrived.header("Location")) == (303, "/wanted?a=1"), name


@ATTACKED
def test_a_code_is_good_once_for_the_browser_that_began_and_at_its_host(doors: Doors, proxy: str) -> None:
    forged = f"/auth/application?code={'x' * 43}"
    location, cookie = doors.begin(proxy)
    assert_refused(doors.send(proxy, forged, *PAGE, ("Cookie", cookie)))
    # Without the cookie of the beginning, or with that of another beginning.
    stolen = httpx.URL(doors.code(location)).raw_path.decode()
    assert_refused(doors.send(proxy, stolen, *PAGE))
    assert_refused(doors.send(proxy, stolen, *PAGE, ("Cookie", cookie)))
    location, cookie = doors.begin(proxy)
    _, other = doors.begin(proxy)
    assert cookie != other
    stolen = httpx.URL(doors.code(location)).raw_path.decode()
    assert_refused(doors.send(proxy, stolen, *PAGE, ("Cookie", other)))
    # At the host of another application, and at another proxy.
    for there, host in ((proxy, BOARD), ("caddy", WIKI)):
        location, cookie = doors.begin(proxy)
        path = httpx.URL(doors.code(location)).raw_path.decode()
        assert_refused(doors.send(there, path, *PAGE, ("Cookie", cookie), host=f"{host}:{doors.ports[there]}"))
    # Twice.
    location, cookie = doors.begin(proxy, "/once")
    path = httpx.URL(doors.code(location)).raw_path.decode()
    arrived = doors.send(proxy, path, *PAGE, ("Cookie", cookie))
    assert (arrived.status, arrived.header("Location")) == (303, "/once")
    assert_refused(doors.send(proxy, path, *PAGE, ("Cookie", cookie)))


def assert_refused(reply: Reply) -> None:
    assert reply.status in (400, 403), reply.status
    cookies = [COOKIE.match(value) for name, value in reply.headers if name.lower() == "set-cookie"]
    assert not [cookie for cookie in cookies if cookie and cookie[2]]


@ATTACKED
def test_a_cookie_is_good_for_its_own_application_only(doors: Doors, proxy: str) -> None:
    name, _, value = doors.session(proxy).partition("=")
    assert name == "__Host-ostiary-app-wiki"
    host = f"{BOARD}:{doors.ports[proxy]}"
    for cookie in (f"{name}={value}", f"__Host-ostiary-app-board={value}", f"__Host-ostiary-session={value}"):
        assert doors.send(proxy, "/taken", ("Cookie", cookie), host=host).status == 401
    assert doors.send(proxy, "/taken", ("Authorization", f"Bearer {value}"), host=host).status == 401
    # Two of one name: somebody else may have set one of them.
    assert doors.send(proxy, "/taken", ("Cookie", f"{name}={value}; {name}={value}")).status == 401
    assert not (targets(doors.board) | targets(doors.wiki)) & {"/taken"}


@EVERYWHERE
def test_a_request_of_another_site_is_refused_before_the_application_sees_it(doors: Doors, proxy: str) -> None:
    cookie = ("Cookie", doors.session(proxy))
    own = f"https://{WIKI}:{doors.ports[proxy]}"
    for headers in (
        (),
        (("Origin", "https://evil.example"),),
        (("Origin", "null"),),
        (("Origin", own), ("Sec-Fetch-Site", "same-site")),
        (("Origin", own), ("Sec-Fetch-Site", "cross-site")),
        (("Origin", f"https://{BOARD}:{doors.ports[proxy]}"),),
        (("Origin", f"https://{WIKI}"),),
        (("Origin", f"https://{WIKI}:{1 + doors.ports[proxy]}"),),
    ):
        length = ("Content-Length", "0")
        reply = doors.send(proxy, "/delete-it", cookie, length, *headers, method="POST")
        assert reply.status == 403, headers
    assert not targets(doors.wiki) & {"/delete-it"}
    assert doors.send(proxy, "/ok", cookie, ("Content-Length", "0"), ("Origin", own), method="POST").status == 200


@EVERYWHERE
def test_nothing_else_of_the_gateway_is_at_the_host_of_an_application(doors: Doors, proxy: str) -> None:
    for path in ("/auth", "/auth/token", "/auth/admin", "/apis/ostiary.dev/v1/sessions", "/.well-known/jwks.json"):
        reply = doors.send(proxy, path)
        assert (reply.status, reply.header("X-Ostiary-Sign-In")) == (401, "required"), path
    for path in ("/doors/nginx/wiki", "/_ostiary/wiki"):
        assert doors.send(proxy, path).status in (401, 404), path
    # The gateway's own host through the proxy of an application.
    gateway_host = doors.url.removeprefix("https://")
    location, _ = doors.begin(proxy)
    target = httpx.URL(location).raw_path.decode()
    reply = doors.send(proxy, f"https://{WIKI}:{doors.ports[proxy]}{target}", *PAGE, host=gateway_host)
    assert reply.status >= 400
    assert doors.send(proxy, target, *PAGE).status == 400


@EVERYWHERE
def test_the_records_have_the_address_of_the_browser_also_on_its_way_back(doors: Doors, proxy: str) -> None:
    cookie = doors.session(proxy, f"/recorded-{proxy}")
    doors.send(proxy, f"/recorded-{proxy}", ("Cookie", cookie))
    doors.gateway.call(doors.gateway.worker.app.auditor.flush)
    events = [event for event in doors.gateway.site.events() if event["stage"] == "ResponseComplete"]
    address = f"127.0.0.{11 + PROXIES.index(proxy)}"
    recorded = [event for event in events if event["requestURI"] == f"/recorded-{proxy}"]
    assert [event["user"].get("username") for event in recorded] == [None, "carol"]
    assert {event["sourceIPs"][0] for event in recorded} == {address}
    back = [event for event in events if event["requestURI"].startswith("/auth/application")]
    assert back[-1]["sourceIPs"][0] == address
