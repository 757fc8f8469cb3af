"""Web applications behind the gateway, in a real browser: deep links, two hosts, WebSockets, sign-out, attacks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import trustme

from ostiary_gateway.interfaces.token_store import RevocationKind
from tests.support.chromium import Chromium
from tests.support.gateway import SECONDS, InProcessGateway, Site, password
from tests.support.page_checks import check_page
from tests.support.web_application import WebApplication

pytestmark = [pytest.mark.needs("chromium", "node", "npm"), pytest.mark.timeout(300)]

RULES = {"verbs": ["*"], "nonResourceURLs": ["*"]}
OPEN_SOCKET = """
const socket = new WebSocket(location.origin.replace('https', 'wss') + '/chat');
window.closed_socket = new Promise((done) => { socket.onclose = () => done('closed') });
await new Promise((done, fail) => { socket.onopen = done; socket.onerror = fail });
const heard = new Promise((done) => { socket.onmessage = (message) => done('you said: ' + message.data) });
socket.send('hello');
return await heard;
"""
FETCH = "const got = await fetch('{}'); return [got.status, got.headers.get('X-Ostiary-Sign-In')]"


@dataclass
class Running:
    gateway: InProcessGateway
    chromium: Chromium
    wiki: WebApplication
    board: WebApplication
    port: int

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def wiki_url(self) -> str:
        return f"https://wiki.apps.localhost:{self.port}"

    @property
    def board_url(self) -> str:
        return f"https://board.apps.localhost:{self.port}"

    def fill_in(self, user: str) -> None:
        self.chromium.fill("Name", user)
        self.chromium.fill("Password", password(user))
        self.chromium.click("button", "Sign in")

    def sign_in(self, user: str = "alice", url: str = "") -> None:
        self.chromium.person()
        self.chromium.go(url or f"{self.wiki_url}/")
        self.fill_in(user)

    def run(self, script: str) -> Any:
        """What a script of the current page gets."""
        return self.chromium("run", script=script)

    def looked_at(self, name: str) -> None:
        check_page(self.chromium, f"application-{name}", alone=False)


def allowing(user: str) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    name = f"pages-of-{user}"
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [RULES]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
        },
    ]


@pytest.fixture(scope="module")
def running(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site._write_leaf("server", ca.issue_cert("localhost", "127.0.0.1", "wiki.apps.localhost", "board.apps.localhost"))
    site.users("alice", "bob")
    site.policy(allowing("alice"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        WebApplication("wiki", cookie="theme=dark; Path=/").running() as wiki,
        WebApplication("board").running() as board,
        Chromium.running() as chromium,
        site.in_process(
            listen={"address": f"127.0.0.1:{port}"},
            externalURL=f"https://localhost:{port}",
            upstreams=[application(wiki, public=["/healthz", "/static/"]), application(board)],
        ) as gateway,
    ):
        yield Running(gateway, chromium, wiki, board, port)


def application(server: WebApplication, **more: Any) -> dict[str, Any]:
    return {
        "name": server.name,
        "server": server.url,
        "hosts": [f"{server.name}.apps.localhost"],
        "attributes": "http",
        "auth": "browser",
        **more,
    }


def test_a_person_opens_a_deep_link_signs_in_and_is_back_at_the_same_page(running: Running) -> None:
    chromium = running.chromium
    chromium.person()
    chromium.go(f"{running.wiki_url}/pages/42?tab=history&q=a%20b")
    assert chromium.url.startswith(f"{running.url}/auth/application?request=")
    assert "The application wiki asks you to sign in." in chromium.text
    assert "pages" not in chromium.url, "where the person wants to go is kept on the server"
    running.looked_at("password")
    running.fill_in("alice")
    assert chromium.url == f"{running.wiki_url}/pages/42?tab=history&q=a%20b"
    assert running.wiki.page.target == "/pages/42?tab=history&q=a%20b"


def test_a_second_application_needs_no_second_sign_in_and_neither_sees_a_cookie_of_ours(running: Running) -> None:
    running.sign_in()
    chromium = running.chromium
    assert chromium.go(f"{running.board_url}/cards?sort=1") == 200
    assert chromium.url == f"{running.board_url}/cards?sort=1", "through the gateway and back, without a question"
    chromium.go(f"{running.wiki_url}/again")
    ours = {cookie["name"]: cookie for cookie in chromium("cookies") if cookie["name"].startswith("__Host-ostiary")}
    assert {"__Host-ostiary-app-wiki", "__Host-ostiary-app-board", "__Host-ostiary-session"} <= set(ours)
    for name, host in (("app-wiki", "wiki.apps.localhost"), ("app-board", "board.apps.localhost")):
        cookie = ours[f"__Host-ostiary-{name}"]
        assert (cookie["domain"], cookie["path"]) == (host, "/")
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Lax")
    assert running.wiki.page.all("Cookie") == ["theme=dark"], "the application's own cookie, as it was"
    for seen in (*running.wiki.seen, *running.board.seen):
        assert "ostiary" not in "".join(seen.all("Cookie"))
        assert seen.all("Authorization") == []


def test_a_websocket_works_and_signing_out_in_one_application_ends_everything(running: Running) -> None:
    running.sign_in()
    chromium, wiki = running.chromium, running.wiki
    chromium.go(f"{running.board_url}/")
    chromium.go(f"{running.wiki_url}/chat")
    wiki.closed.clear()
    assert running.run(OPEN_SOCKET) == "you said: hello"
    chromium.click("link", "Leave")
    assert "You are signed out" in chromium.text
    running.looked_at("signed-out")
    assert wiki.closed.wait(SECONDS), "the WebSocket was cut"
    for url in (running.wiki_url, running.board_url, f"{running.url}/auth/sessions"):
        chromium.go(url)
        assert chromium.url.startswith(f"{running.url}/auth"), url
        assert "Name" in chromium.text


def test_a_revocation_cuts_the_websocket_and_scripts_then_get_a_401(running: Running) -> None:
    running.sign_in()
    chromium, wiki = running.chromium, running.wiki
    chromium.go(f"{running.wiki_url}/chat")
    assert running.run(OPEN_SOCKET) == "you said: hello"
    assert running.run(FETCH.format("/data")) == [200, None]
    tokens = running.gateway.worker.app.shared.tokens
    running.gateway.call(lambda: tokens.revoke(RevocationKind.USER, "alice"))
    assert running.run("return await window.closed_socket") == "closed"
    before = len(wiki.seen)
    assert running.run(FETCH.format("/data")) == [401, "required"]
    assert len(wiki.seen) == before, "nothing reached the application"
    chromium.go(f"{running.wiki_url}/chat")
    assert chromium.url.startswith(f"{running.url}/auth/application")


def test_signing_out_on_the_gateways_page_ends_the_applications_too(running: Running) -> None:
    running.sign_in()
    chromium = running.chromium
    assert chromium.go(f"{running.url}/auth/logout") == 200
    assert "You are signed in as alice" in chromium.text
    running.looked_at("sign-out")
    chromium.click("button", "Sign out")
    assert "This browser is signed out." in chromium.text
    chromium.go(f"{running.wiki_url}/")
    assert chromium.url.startswith(f"{running.url}/auth/application")


def test_a_link_of_another_site_asks_before_it_signs_anybody_out(running: Running) -> None:
    running.sign_in()
    chromium = running.chromium
    chromium.go(f"{running.wiki_url}/auth/logout")
    assert "Sign out?" in chromium.text
    chromium.go(f"{running.wiki_url}/still")
    assert chromium.url == f"{running.wiki_url}/still"
    chromium.go(f"{running.wiki_url}/auth/logout")
    chromium.click("button", "Sign out")
    assert "You are signed out" in chromium.text
    chromium.click("link", "Open the application again")
    assert chromium.url.startswith(f"{running.url}/auth/application")


def test_a_person_without_permission_sees_a_page_that_says_so(running: Running) -> None:
    running.sign_in("bob")
    chromium = running.chromium
    assert "You are signed in as bob, and have no permission for this page." in chromium.text
    assert chromium.go(f"{running.wiki_url}/secret") == 403
    running.looked_at("forbidden")
    chromium.click("link", "Sign out")
    assert "You are signed out" in chromium.text


def test_a_page_of_a_sibling_host_cannot_use_the_cookie(running: Running) -> None:
    """SameSite=Lax lets the cookie pass between hosts of one domain: Origin and Sec-Fetch-Site tell them apart."""
    running.sign_in()
    chromium, wiki = running.chromium, running.wiki
    chromium.go(f"{running.board_url}/evil")
    before = [seen for seen in wiki.seen if seen.method == "POST" or seen.all("Upgrade")]
    status = running.run(
        f"try {{ return (await fetch('{running.wiki_url}/delete', {{method: 'POST', mode: 'no-cors',"
        " credentials: 'include'})).type } catch { return 'failed' }"
    )
    assert status == "opaque"
    socket_url = running.wiki_url.replace("https", "wss")
    opened = running.run(
        f"const socket = new WebSocket('{socket_url}/chat');"
        "return await new Promise((done) => { socket.onopen = () => done('open'); socket.onerror = () => done('no') })"
    )
    assert opened == "no"
    running.run(
        f"const form = document.createElement('form'); form.method = 'post'; form.action = '{running.wiki_url}/delete';"
        "document.body.append(form); form.submit()"
    )
    chromium.see("The request was sent by a page of another site.")
    assert chromium.url == f"{running.wiki_url}/delete"
    running.looked_at("cross-site")
    assert [seen for seen in wiki.seen if seen.method == "POST" or seen.all("Upgrade")] == before


def test_forms_and_scripts_of_the_application_itself_work(running: Running) -> None:
    running.sign_in()
    running.chromium.go(f"{running.wiki_url}/edit")
    assert running.run("return (await fetch('/save', {method: 'POST', body: 'x'})).status") == 200
    assert running.wiki.last.method == "POST"


def test_what_is_public_needs_no_sign_in_and_has_no_user(running: Running) -> None:
    chromium = running.chromium
    chromium.person()
    assert chromium.go(f"{running.wiki_url}/static/logo") == 200
    assert chromium.url == f"{running.wiki_url}/static/logo"
    assert not [name for name in running.wiki.page.lines if name.lower().startswith(("x-remote", "x-ostiary"))]


def test_the_gateways_own_address_leads_people_to_the_sign_in(running: Running) -> None:
    chromium = running.chromium
    chromium.person()
    chromium.go(f"{running.url}/")
    assert chromium.url == f"{running.url}/auth"
    assert running.gateway.get("/").status_code == 401, "programs as before"


def test_nobody_types_a_password_at_the_host_of_an_application(running: Running) -> None:
    chromium = running.chromium
    chromium.person()
    chromium.go(f"{running.wiki_url}/auth")
    assert chromium.url == f"{running.url}/auth"
