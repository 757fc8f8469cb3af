"""Who gets a page, who a 401, who a 403: requests to web applications with and without a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import APPLICATION_PREFIX, new_token
from tests.support.http1 import Upstreamed, connected
from tests.support.visitor import GATEWAY, PAGE, SCRIPT
from tests.unit.ostiary_gateway.proxy.applications import BOARD, WIKI, applications
from tests.unit.ostiary_gateway.proxy.gateways import DENY, cut

COOKIE = "__Host-ostiary-app-wiki"
ORIGIN = f"Origin: {WIKI}"


# --- without a session ---


async def test_a_page_load_is_led_to_the_sign_in_and_the_target_is_in_no_address(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = site.visitor()
        answer = await visitor.ask(f"{WIKI}/pages/1?secret=x", *PAGE)
        assert answer.status == 303
        location = (answer.one("Location") or b"").decode()
        assert location.startswith(f"{GATEWAY}/auth/application?request=")
        assert "pages" not in location
        assert "secret" not in location
        (cookie,) = answer.all("Set-Cookie")
        assert cookie.startswith(b"__Host-ostiary-visit=")
        assert cookie.endswith(b"; Max-Age=600; Path=/; HttpOnly; SameSite=Lax; Secure")
        assert site.application.requests == []


async def test_everything_else_gets_a_401_that_says_that_sign_in_is_required(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, tuple[str, ...]]] = [
        ("a program", ("Accept: application/json",)),
        ("curl", ("Accept: */*",)),
        ("a script", SCRIPT),
        ("a script for HTML", ("Accept: text/html", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty")),
        ("an object", ("Accept: text/html", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: object")),
        ("an image", ("Accept: image/*", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image")),
    ]
    for case, lines in cases:
        with subtests.test(case):
            tmp_path = tmp_path_factory.mktemp("case")
            async with applications(tmp_path) as site:
                answer = await site.visitor().ask(f"{WIKI}/data", *lines)
                assert answer.status == 401
                assert answer.one("X-Ostiary-Sign-In") == b"required"
                assert (answer.one("WWW-Authenticate") or b"").startswith(b"Bearer")
                assert json.loads(answer.body)["message"].startswith("sign-in required")


async def test_a_program_with_a_token_is_served_as_everywhere(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        token = f"Authorization: Bearer {site.gateway.token}"
        for _ in range(3):
            assert (await site.visitor().ask(f"{WIKI}/x", token, *PAGE)).status == 200
        refused = await site.visitor().ask(f"{WIKI}/x", "Authorization: Bearer wrong", *PAGE)
        assert (refused.status, refused.one("X-Ostiary-Sign-In")) == (401, None)


async def test_a_form_without_a_session_gets_a_page_and_is_not_forwarded(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        answer = await site.visitor().ask(f"{WIKI}/save", *PAGE, ORIGIN, method="POST", body=b"a=1")
        assert answer.status == 401
        assert b"what you sent was not forwarded" in answer.body
        assert site.application.requests == []


async def test_a_host_that_nobody_configured_is_not_led_anywhere(tmp_path: Path) -> None:
    """Any site can make its own name one of ours by DNS; its pages would share an origin with the application."""
    async with applications(tmp_path, names=["wiki"], hosts=[], prefix="/wiki") as site:
        for host in ("https://evil.test", "https://gateway.test:8080"):
            assert (await site.visitor().ask(f"{host}/wiki/x", *PAGE)).status == 401
        assert (await site.visitor().ask(f"{GATEWAY}/wiki/x", *PAGE)).status == 303


# --- with a session ---


async def test_the_cookie_opens_the_application_and_is_not_sent_to_it(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in(f"{WIKI}/pages/1?q=2")
        assert visitor.url == f"{WIKI}/pages/1?q=2"
        visitor.cookies["wiki.test"] = {"a": '"1;,"', COOKIE: visitor.cookies["wiki.test"][COOKIE], "b": "x=y"}
        answer = await visitor.ask(f"{WIKI}/next", *SCRIPT, "X-Remote-User: mallory", "X-Ostiary-Assertion: mine")
        assert answer.status == 200
        seen = site.application.requests[-1]
        assert seen.all("Cookie") == [b'a="1;,"; b=x=y']
        assert seen.all("X-Remote-User") == seen.all("X-Ostiary-Assertion") == seen.all("Authorization") == []


async def test_the_cookie_of_one_application_is_unknown_at_another(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        stolen = visitor.cookies["wiki.test"][COOKIE]
        other = site.visitor()
        other.cookies["board.test"] = {"__Host-ostiary-app-board": stolen}
        assert (await other.ask(f"{BOARD}/x", *SCRIPT)).status == 401
        other.cookies["board.test"] = {COOKIE: stolen}
        assert (await other.ask(f"{BOARD}/x", *SCRIPT)).status == 401


async def test_the_cookie_is_no_bearer_token_and_opens_no_page_of_the_gateway(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        stolen = visitor.cookies["wiki.test"][COOKIE]
        other = site.visitor()
        assert (await other.ask(f"{WIKI}/x", f"Authorization: Bearer {stolen}", *SCRIPT)).status == 401
        for name in (COOKIE, "__Host-ostiary-session"):
            other.cookies["gateway.test"] = {name: stolen}
            for path in ("/auth/token", "/auth/sessions", "/auth/admin"):
                answer = await other.ask(f"{GATEWAY}{path}", *PAGE)
                assert (answer.status, answer.one("Location")) == (303, b"/auth"), (name, path)


async def test_the_gateways_own_cookie_opens_no_application(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        own = visitor.cookies["gateway.test"]["__Host-ostiary-session"]
        other = site.visitor()
        other.cookies["wiki.test"] = {COOKIE: own, "__Host-ostiary-session": own}
        assert (await other.ask(f"{WIKI}/x", *SCRIPT)).status == 401


async def test_two_cookies_of_the_same_name_are_none(tmp_path: Path) -> None:
    """Somebody who can set a cookie for the whole domain must not choose who the visitor is."""
    async with applications(tmp_path) as site:
        mallory, alice = await site.signed_in(), await site.signed_in()
        alice.tossed["wiki.test"] = [f"{COOKIE}={mallory.cookies['wiki.test'][COOKIE]}"]
        assert (await alice.ask(f"{WIKI}/x", *SCRIPT)).status == 401
        page = await alice.open(f"{WIKI}/x")
        assert page.status == 403, "and a page load does not go round for ever"
        assert b"several cookies of one name" in page.body


async def test_an_unknown_cookie_is_looked_up_once_and_leads_to_the_sign_in(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = site.visitor()
        visitor.cookies["wiki.test"] = {COOKIE: new_token(APPLICATION_PREFIX).reveal()}
        before = site.gateway.store.lookups
        for _ in range(30):
            assert (await visitor.ask(f"{WIKI}/poll", *SCRIPT)).status == 401
        assert site.gateway.store.lookups == before + 1, "an open page that polls costs nothing, and locks nobody out"
        assert (await visitor.ask(f"{WIKI}/", *PAGE)).status == 303
        assert (await visitor.open(f"{WIKI}/")).status == 200


async def test_a_store_that_cannot_be_asked_is_no_sign_out(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        site.gateway.worker.app.shared.authenticator.in_use.by_digest.clear()
        site.gateway.store.down = True
        page = await visitor.ask(f"{WIKI}/x", *PAGE)
        assert (page.status, page.one("Content-Type")) == (503, b"text/html; charset=utf-8")
        assert b"Your session cannot be checked." in page.body
        assert json.loads((await visitor.ask(f"{WIKI}/x", *SCRIPT)).body)["code"] == 503


async def speaking_nonsense(connection: Upstreamed) -> None:
    await connection.request()
    connection.send(b"this is not HTTP\r\n\r\n")


async def test_an_application_that_cannot_be_reached_is_a_page_for_people_and_a_status_for_programs(
    tmp_path: Path,
) -> None:
    async with applications(tmp_path, script=speaking_nonsense) as site:
        visitor = site.visitor()
        page = await visitor.open(f"{WIKI}/")
        assert (page.status, page.one("Content-Type")) == (502, b"text/html; charset=utf-8")
        assert b"The application is unavailable." in page.body
        assert (page.one("Audit-Id") or b"none") in page.body
        assert json.loads((await visitor.ask(f"{WIKI}/data", *SCRIPT)).body)["code"] == 502


async def test_a_refusal_is_a_page_for_people_and_a_status_for_programs(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        site.policy.rule = DENY
        page = await visitor.ask(f"{WIKI}/denied", *PAGE)
        assert (page.status, page.one("Content-Type")) == (403, b"text/html; charset=utf-8")
        assert b"have no permission for this page" in page.body
        assert (page.one("Audit-Id") or b"none") in page.body
        script = await visitor.ask(f"{WIKI}/denied", *SCRIPT)
        assert json.loads(script.body)["reason"] == "Forbidden"
    (tmp_path / "api").mkdir()
    async with applications(tmp_path / "api", auth="token") as site:
        site.policy.rule = DENY
        refusal = await site.visitor().ask(f"{WIKI}/denied", f"Authorization: Bearer {site.gateway.token}", *PAGE)
        assert json.loads(refusal.body)["reason"] == "Forbidden", "an API has no pages"


# --- other sites ---

FOREIGN = ("https://evil.test", "https://board.test", "http://wiki.test", "https://wiki.test:444", "null", "")


async def test_what_another_site_sends_is_refused(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for origin in FOREIGN:
        for method in ["POST", "PUT", "DELETE", "PATCH"]:
            with subtests.test(origin=origin, method=method):
                tmp_path = tmp_path_factory.mktemp("case")
                async with applications(tmp_path) as site:
                    visitor = await site.signed_in()
                    before = len(site.application.requests)
                    lines = (*SCRIPT, f"Origin: {origin}") if origin else SCRIPT
                    answer = await visitor.ask(f"{WIKI}/delete", *lines, method=method, body=b"x")
                    assert answer.status == 403
                    assert json.loads(answer.body)["message"] == "the request was sent by a page of another site"
                    assert len(site.application.requests) == before


@pytest.mark.parametrize("fetch_site", ["cross-site", "same-site"])
async def test_the_site_that_the_browser_tells_counts_too(tmp_path: Path, fetch_site: str) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        lines = (ORIGIN, f"Sec-Fetch-Site: {fetch_site}")
        assert (await visitor.ask(f"{WIKI}/x", *PAGE, *lines, method="POST", body=b"x")).status == 403
        assert (
            await visitor.ask(f"{WIKI}/x", *PAGE, ORIGIN, "Sec-Fetch-Site: same-origin", method="POST", body=b"x")
        ).status == 200


UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA")


async def test_a_websocket_of_another_site_is_refused(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for origin in FOREIGN:
        with subtests.test(origin=origin):
            tmp_path = tmp_path_factory.mktemp("case")
            async with applications(tmp_path) as site:
                visitor = await site.signed_in()
                before = len(site.application.requests)
                lines = (*UPGRADE, f"Origin: {origin}") if origin else UPGRADE
                assert (await visitor.ask(f"{WIKI}/chat", *lines)).status == 403
                assert len(site.application.requests) == before


async def switching(connection: Upstreamed) -> None:
    """Switches protocols where that is asked for, and says again whatever comes."""
    while True:
        request = await connection.request()
        connection.upstream.requests.append(request)
        if request.all("Upgrade"):
            connection.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            while data := await connection.reader.read(100):
                connection.send(data)
            return
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def test_a_websocket_of_its_own_works_and_is_cut_when_the_session_is_revoked(tmp_path: Path) -> None:
    async with applications(tmp_path, script=switching) as site:
        visitor = await site.signed_in()
        cookie = f"Cookie: {COOKIE}={visitor.cookies['wiki.test'][COOKIE]}"
        async with connected(site.gateway.port) as client:
            lines = ("GET /chat HTTP/1.1", "Host: wiki.test", *UPGRADE, ORIGIN, cookie, "", "")
            client.send("\r\n".join(lines).encode())
            assert (await client.head()).status == 101
            client.send(b"hello")
            assert await client.exactly(5) == b"hello"
            tokens = site.gateway.worker.app.shared.tokens
            (session,) = [each for each in await tokens.store.sessions() if each.client]
            await tokens.revoke(RevocationKind.SESSION, session.id)
            await cut(client)
        assert (await visitor.ask(f"{WIKI}/x", *SCRIPT)).status == 401


# --- the application's own Authorization header ---


async def test_authorization_of_the_application_passes_only_where_that_is_configured(tmp_path: Path) -> None:
    basic = "Authorization: Basic YTpi"
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        assert (await visitor.ask(f"{WIKI}/x", basic, *SCRIPT)).status == 401, "it is for us, and no token"
    (tmp_path / "second").mkdir()
    async with applications(tmp_path / "second", passAuthorization=True) as site:
        visitor = await site.signed_in()
        assert (await visitor.ask(f"{WIKI}/x", basic, *SCRIPT)).status == 200
        assert site.application.requests[-1].all("Authorization") == [b"Basic YTpi"]
        ours = f"Authorization: Bearer {site.gateway.token}"
        assert (await visitor.ask(f"{WIKI}/x", ours, *SCRIPT)).status == 200
        assert site.application.requests[-1].all("Authorization") == [], "a token of ours is never sent on"
        assert (await site.visitor().ask(f"{WIKI}/x", basic, *SCRIPT)).status == 401


# --- on the gateway's own host ---


async def test_an_application_on_the_gateways_host_cannot_install_a_service_worker(tmp_path: Path) -> None:
    """It would see whatever is sent to the sign-in pages, passwords included."""
    async with applications(tmp_path, names=["wiki"], hosts=["gateway.test"], prefix="/wiki") as site:
        visitor = await site.signed_in(f"{GATEWAY}/wiki/")
        answer = await visitor.ask(f"{GATEWAY}/wiki/worker.js", "Service-Worker: script", *SCRIPT)
        assert answer.status == 403
        assert b"service workers" in answer.body


# --- time passes ---


async def test_a_running_page_sees_nothing_of_a_renewal_and_learns_of_the_sessions_end(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        for _ in range(3):
            site.gateway.clock.advance(minutes=16)
            for _ in range(4):
                answer = await visitor.ask(f"{WIKI}/data", *SCRIPT)
                assert (answer.status, answer.all("Set-Cookie")) == (200, [])
                assert (await visitor.ask(f"{WIKI}/data", *PAGE)).status == 200
        site.gateway.clock.advance(hours=24)
        assert (await visitor.ask(f"{WIKI}/data", *SCRIPT)).one("X-Ostiary-Sign-In") == b"required"
        assert (await visitor.ask(f"{WIKI}/data", *PAGE)).status == 303
