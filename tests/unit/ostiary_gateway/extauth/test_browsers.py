"""Questions about the requests of browsers to web applications: how they are led to sign in, and what is told."""

from __future__ import annotations

import json
from getpass import getuser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from ostiary_gateway.issuer.keys import KeyRing
from tests.support.http1 import Message, get
from tests.support.visitor import GATEWAY, PAGE, SCRIPT, Visitor
from tests.unit.ostiary_gateway.extauth.test_forward_auth import SECRET, doors, headers
from tests.unit.ostiary_gateway.proxy.gateways import DENY, Gateway, ImmediatePolicy
from tests.unit.ostiary_gateway.proxy.test_browsers_told_by_assertion import settings

HOST = "wiki.test:8080"
WIKI = {"name": "wiki", "hosts": ["wiki.test"], "attributes": "http", "auth": "browser", "public": ["/static/"]}
DOORS = [
    {"name": kind, "proxy": kind, "port": 8080, "callers": {"tokenFile": "secret"}} for kind in ("nginx", "traefik")
]
SECTIONS: dict[str, Any] = {"externalURL": GATEWAY, "upstreams": [WIKI], "doors": DOORS}


async def ask(site: Gateway, uri: str = "/x", *lines: str, method: str = "GET", host: str = HOST) -> Message:
    """What Traefik asks: it gets the answer as it is."""
    told = (
        f"X-Ostiary-Door: {SECRET}",
        f"X-Forwarded-Method: {method}",
        f"X-Forwarded-Uri: {uri}",
        f"X-Forwarded-Host: {host}",
        "X-Forwarded-For: 192.0.2.7",
    )
    return await site.client.ask(get("/doors/traefik/wiki", *told, *lines))


async def ask_as_nginx(site: Gateway, uri: str, *lines: str, method: str = "GET") -> Message:
    told = (
        f"X-Ostiary-Door: {SECRET}",
        f"X-Original-Method: {method}",
        f"X-Original-URI: {uri}",
        f"X-Original-Host: {HOST}",
        "X-Forwarded-For: 192.0.2.7",
    )
    return await site.client.ask(get("/doors/nginx/wiki", *told, *lines))


async def sign_in(site: Gateway, target: str = "/x") -> str:
    """The cookie of the application, after a page of it was asked for."""
    led = await ask(site, target, *PAGE)
    assert led.status == 303
    visitor = Visitor(site.port)
    name, _, secret = headers(led)["set-cookie"].partition(";")[0].partition("=")
    visitor.cookies[HOST] = {name: secret}
    back = await visitor.way_to(headers(led)["location"], "code=")
    arrived = await visitor.ask(back, *PAGE)
    assert (arrived.status, arrived.one("Location")) == (303, target.encode())
    cookies = visitor.cookies[HOST]
    return f"__Host-ostiary-app-wiki={cookies['__Host-ostiary-app-wiki']}"


async def test_a_page_load_is_led_to_the_sign_in_page_and_back_to_the_port_of_the_proxy(tmp_path: Path) -> None:
    """C5: the target is in the record of the sign-in, and in no address."""
    async with doors(tmp_path, **SECTIONS) as site:
        led = await ask(site, "/deep?tab=1", *PAGE)
        assert led.status == 303
        assert headers(led)["location"].startswith(f"{GATEWAY}/auth/application?request=")
        assert "deep" not in headers(led)["location"]
        assert len(led.all("Set-Cookie")) == 1, "nginx hands on no more than one"
        assert headers(led)["vary"] == "Accept, Cookie, Sec-Fetch-Mode"
        cookie = await sign_in(site, "/deep?tab=1")
        allowed = await ask(site, "/deep?tab=1", *PAGE, f"Cookie: {cookie}")
        assert (allowed.status, headers(allowed)["x-remote-user"]) == (200, getuser())


async def test_nginx_gets_the_redirect_and_pages_in_headers_of_one_line(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with doors(tmp_path, policy, **SECTIONS) as site:
        led = await ask_as_nginx(site, "/x", *PAGE)
        assert (led.status, headers(led)["x-ostiary-status"], headers(led)["x-ostiary-body"]) == (403, "303", "")
        assert headers(led)["location"].startswith(f"{GATEWAY}/auth/application?request=")
        form = await ask_as_nginx(site, "/save", *PAGE, method="POST")
        assert (form.status, headers(form)["x-ostiary-status"]) == (401, "401")
        assert headers(form)["x-ostiary-body"].startswith("<!doctype html>")
        cookie = await sign_in(site)
        policy.rule = DENY
        refused = await ask_as_nginx(site, "/denied", *PAGE, f"Cookie: {cookie}")
        assert (refused.status, headers(refused)["content-type"]) == (403, "text/html; charset=utf-8")
        page = headers(refused)["x-ostiary-body"]
        assert page.startswith("<!doctype html>")
        assert page.endswith("</html>")


def test_the_script_of_the_pages_means_the_same_on_one_line() -> None:
    script = files("ostiary_gateway.login.pages").joinpath("assets", "page.js").read_text()
    lines = [line.strip() for line in script.splitlines()]
    assert not [line for line in lines if "//" in line or "`" in line], "a comment would swallow the rest"
    assert [line for line in lines if not line.endswith(("{", "}", ";", ","))] == [], "a line without its end"


@pytest.mark.parametrize("lines", [SCRIPT, ("Accept: */*",), ()])
async def test_scripts_and_programs_get_a_401(tmp_path: Path, lines: tuple[str, ...]) -> None:
    async with doors(tmp_path, **SECTIONS) as site:
        answer = await ask(site, "/data", *lines)
        assert (answer.status, headers(answer)["x-ostiary-sign-in"]) == (401, "required")
        token = await ask(site, "/data", *lines, f"Authorization: Bearer {site.token}")
        assert (token.status, headers(token)["x-remote-user"]) == (200, "alice")


@pytest.mark.parametrize("host", ["wiki.test", "wiki.test:443", "wiki.test:9999", "evil.test:8080", "gateway.test"])
async def test_a_host_or_port_that_nobody_configured_is_led_nowhere(tmp_path: Path, host: str) -> None:
    async with doors(tmp_path, **SECTIONS) as site:
        answer = await ask(site, "/x", *PAGE, host=host)
        assert answer.status in (401, 404)
        assert not answer.all("Location")
        assert not answer.all("Set-Cookie")


@pytest.mark.parametrize("target", ["/auth/application?code=x", "/auth/application", "/auth/logout"])
async def test_a_question_about_the_way_back_is_a_mistake_of_the_proxy(tmp_path: Path, target: str) -> None:
    async with doors(tmp_path, **SECTIONS) as site:
        assert (await ask(site, target, *PAGE)).status == 503
        assert (await ask_as_nginx(site, target, *PAGE)).status == 503
        assert (await ask(site, "/auth/other", *PAGE)).status == 303, "a path of the application"


@pytest.mark.parametrize(
    ("cookies", "left"),
    [
        (["{}"], []),
        (["a=1; {}; b=2"], ["a=1; b=2"]),
        (["a=1", "{}", "b=2"], ["a=1; b=2"]),
        (["{}; __Host-ostiary-visit=x; ostiary-session=y"], []),
    ],
)
async def test_an_allowing_answer_has_the_cookies_of_the_application_alone(
    tmp_path: Path, cookies: list[str], left: list[str]
) -> None:
    async with doors(tmp_path, **SECTIONS) as site:
        cookie = await sign_in(site)
        lines = [f"Cookie: {each.format(cookie)}" for each in cookies]
        allowed = await ask(site, "/x", *SCRIPT, *lines)
        assert (allowed.status, [line.decode() for line in allowed.all("Cookie")]) == (200, left)
        nginx = await ask_as_nginx(site, "/x", *SCRIPT, *lines)
        assert (nginx.status, [line.decode() for line in nginx.all("X-Ostiary-Cookie")]) == (200, left)


async def test_a_program_has_its_own_cookies_each_time_though_its_question_is_remembered(tmp_path: Path) -> None:
    async with doors(tmp_path, **SECTIONS) as site:
        for cookies in ("a=1", "a=1", "a=1", "a=2", "a=1"):
            lines = (f"Authorization: Bearer {site.token}", f"Cookie: {cookies}; __Host-ostiary-session=x")
            assert (await ask(site, "/x", *lines)).all("Cookie") == [cookies.encode()]


async def test_a_request_of_another_site_is_refused(tmp_path: Path) -> None:
    async with doors(tmp_path, **SECTIONS) as site:
        cookie = f"Cookie: {await sign_in(site)}"
        own = f"Origin: https://{HOST}"
        assert (await ask(site, "/save", cookie, own, method="POST")).status == 200
        for lines in ((), ("Origin: https://wiki.test",), ("Origin: null",), (own, "Sec-Fetch-Site: same-site")):
            assert (await ask(site, "/save", cookie, *lines, method="POST")).status == 403


async def test_at_a_public_path_nobody_is_told_of_and_no_policy_is_asked(tmp_path: Path) -> None:
    policy = ImmediatePolicy(DENY)
    upstream = WIKI | {"identity": "assertion"}
    async with doors(tmp_path, policy, **SECTIONS | settings(tmp_path) | {"upstreams": [upstream]}) as site:
        answer = await ask(site, "/static/x", *PAGE, "Cookie: a=1; __Host-ostiary-app-wiki=x")
        assert answer.status == 200
        told = {name: value for name, value in headers(answer).items() if name.startswith("x-")}
        assert told == dict.fromkeys(("x-remote-user", "x-remote-uid", "x-remote-group", "x-ostiary-assertion"), "")
        assert answer.all("Cookie") == [b"a=1"]
        assert policy.asked == []


async def test_an_upstream_is_told_by_a_jwt_and_without_a_key_by_nobody(tmp_path: Path) -> None:
    upstream = WIKI | {"identity": "assertion"}
    async with doors(tmp_path, **SECTIONS | settings(tmp_path) | {"upstreams": [upstream]}) as site:
        bearer = f"Authorization: Bearer {site.token}"
        answer = await ask(site, "/x", bearer, "X-Ostiary-Assertion: forged")
        issuer = site.worker.app.issuer
        assert issuer is not None
        keys: Any = await issuer.key_set()
        (text,) = answer.all("X-Ostiary-Assertion")
        claims = jwt.decode(text.decode(), KeySet.import_key_set(keys), algorithms=["ES256"]).claims
        assert (claims["aud"], claims["username"]) == (["wiki"], "alice")
        issuer._keys.ring = KeyRing()
        site.clock.advance(seconds=30)
        answer = await ask(site, "/y", bearer)
        assert (answer.status, answer.all("X-Remote-User")) == (503, [])
        assert json.loads(answer.body)["code"] == 503
